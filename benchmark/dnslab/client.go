package dnslab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// lookupTimeout limits lookups of contenders that have no limit of their own.
const lookupTimeout = 15 * time.Second

// A lookupFunc looks up a name with one of the compared DNS clients. It returns an error unless the answer is right.
type lookupFunc func(ctx context.Context, name string) error

// A contender is a DNS client or forwarder to compare. Its Start function starts it and returns its lookup function.
type contender = lab.Contender[*client, lookupFunc]

var contenders = append([]contender{
	{Name: "single", Start: newHedgingStarter(dnshedge.Hedge{Off: true})},
	{Name: "hedge", Start: newHedgingStarter(dnshedge.Hedge{})},
	{Name: "miekg", Start: (*client).startMiekg},
	{Name: "net-resolver", Start: (*client).startNetResolver},
}, newForwarderContenders()...)

// newForwarderContenders returns the DNS forwarders to compare, which run as processes of their own.
func newForwarderContenders() (all []contender) {
	for _, name := range forwarders {
		all = append(all, contender{Name: name, Start: (*client).startForwarder})
	}
	return all
}

// Contenders lists the names of all contenders.
var Contenders = lab.NamesOf(contenders)

// ContenderNames returns the names of the clients that can query servers over the transport: udp, tls or https.
func ContenderNames(transport string) []string {
	return slices.DeleteFunc(slices.Clone(Contenders), func(name string) bool {
		transports, isForwarder := dnsserver.SupportedTransports[name]
		return isForwarder && !slices.Contains(transports, transport) || (name == "miekg" || name == "net-resolver") && transport != "udp"
	})
}

// A client is a compared DNS client or forwarder while it runs, on a host of its own.
type client struct {
	*testbed
	name       string
	lookup     lookupFunc
	sentBefore int64            // queries before the first lookup
	complete   func(r *lab.Row) // sets further figures; nil: there are none
	calls      lab.Recorder
}

// queryName returns the n-th name that c looks up. It contains the name of c, by which servers count its queries.
func (c *client) queryName(n int) string { return fmt.Sprintf("n%d.%s.example.", n, c.name) }

func (c *client) newRow() lab.Row {
	calls := c.calls.SortedCalls()
	r := lab.Row{Contender: c.name, Calls: calls, Asked: len(calls), Sent: c.countSentQueries() - c.sentBefore}
	if c.complete != nil {
		c.complete(&r)
	}
	return r
}

// countSentQueries returns the number of queries that the DNS client has sent. Over TLS and HTTPS, where no query is
// lost, it returns the number that the servers have received.
func (c *client) countSentQueries() int64 {
	if c.conf.Transport != "udp" {
		return c.received[c.name].Load()
	}
	return c.Net.Link(c.name, "a").Counters().UDP + c.Net.Link(c.name, "b").Counters().UDP
}

// upstreams returns the servers for a DNS client: both if the first may be dead or under load, otherwise the first alone.
func (l *testbed) upstreams() []string {
	hosts := []string{"a"}
	if strings.HasPrefix(l.conf.Scenario, "dead") || l.conf.Workers > 0 {
		hosts = []string{"a", "b"}
	}
	var addresses []string
	for _, h := range hosts {
		addresses = append(addresses, l.Net.Host(h).Addr().String())
	}
	return addresses
}

// startClients starts the DNS clients that the config selects. If it selects none, all that support its transport start.
func (l *testbed) startClients() ([]*client, error) {
	if len(l.conf.Contenders) == 0 {
		l.conf.Contenders = ContenderNames(l.conf.Transport)
	}
	return lab.StartAll(l.conf, contenders, func(s contender) (c *client, err error) {
		c = &client{testbed: l, name: s.Name}
		c.lookup, err = s.Start(c)
		c.sentBefore = c.countSentQueries()
		return c, err
	})
}

// checkAnswer returns err, the error of a lookup, if it is not nil, and otherwise an error unless r has exactly one record.
func checkAnswer(r *dns.Msg, err error) error {
	switch {
	case err != nil:
		return err
	case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
		return fmt.Errorf("wrong answer: %s, %d records", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

func newQuery(name string) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	return m
}

// newHedgingStarter returns a function that starts a client of package dnshedge with the settings h.
func newHedgingStarter(h dnshedge.Hedge) func(*client) (lookupFunc, error) {
	return func(c *client) (lookupFunc, error) {
		_, trusting := dnstest.Certificate()
		hedging := &dnshedge.Client{Hedge: h, Dialer: c.Net.Host(c.name), TLSConfig: trusting}
		for _, address := range c.upstreams() {
			s := c.conf.Transport + "://" + address
			if c.conf.Transport != "udp" {
				s += "#" + dnstest.Name
			}
			upstream, err := dnshedge.ParseUpstream(s)
			if err != nil {
				return nil, err
			}
			hedging.Upstreams = append(hedging.Upstreams, upstream)
		}
		c.AtClose(func() { _ = hedging.Close() })
		c.complete = func(r *lab.Row) {
			s := hedging.Stats()
			r.Hedges, r.Wins, r.Denied = s.Hedges, s.HedgeWins, s.Denied
		}
		return func(ctx context.Context, name string) error {
			r, _, err := hedging.ExchangeContext(ctx, newQuery(name), "")
			return checkAnswer(r, err)
		}, nil
	}
}

// startMiekg starts the plain client of the library github.com/miekg/dns, which does not hedge. It opens a socket for
// each query, waits two seconds for each server, and tries the servers in order.
func (c *client) startMiekg() (lookupFunc, error) {
	plain, upstreams := new(dns.Client), c.upstreams()
	return func(ctx context.Context, name string) (err error) {
		for _, address := range upstreams {
			var conn net.Conn
			if conn, err = c.Net.Host(c.name).DialContext(ctx, "udp", net.JoinHostPort(address, "53")); err != nil {
				return err
			}
			var r *dns.Msg
			r, _, err = plain.ExchangeWithConnContext(ctx, newQuery(name), &dns.Conn{Conn: conn})
			_ = conn.Close()
			if err == nil {
				return checkAnswer(r, nil)
			}
		}
		return err
	}, nil
}

// A queryCountKey is the context key for the number of queries that Go's resolver has sent for a lookup. The dialer
// selects the server by that number.
type queryCountKey struct{}

// startNetResolver starts Go's own resolver, net.Resolver. Each attempt of a lookup goes to the next server.
func (c *client) startNetResolver() (lookupFunc, error) {
	upstreams := c.upstreams()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		n := ctx.Value(queryCountKey{}).(*atomic.Int64).Add(1) - 1
		return c.Net.Host(c.name).DialContext(ctx, network, net.JoinHostPort(upstreams[int(n)%len(upstreams)], "53"))
	}}
	return func(ctx context.Context, name string) error {
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, queryCountKey{}, new(atomic.Int64)), lookupTimeout)
		defer cancel()
		addresses, err := r.LookupNetIP(ctx, "ip4", name)
		if err == nil && len(addresses) != 1 {
			err = errors.New("wrong answer")
		}
		return err
	}, nil
}
