// Package dnshedge is a DNS client that hides lost packets, stalled connections
// and slow servers from its callers.
//
// A [Client] sends a query to the best of a group of equivalent servers. If the
// answer is late, it sends a hedge: the same question from another socket or over
// another connection, to another server if there is one. When an answer is late
// is learned (see [Hedge]); a budget bounds the hedges to 5 % of the queries. A
// Client speaks UDP, TCP, TLS and HTTPS, keeps connections open, and may have a
// [Cache].
//
// There are three ways to use it:
//
//	c := &dnshedge.Client{Cache: new(dnshedge.Cache)} // the system's servers
//
//	// Every net.Dialer, http.Transport, gRPC or database client of a program:
//	net.DefaultResolver = c.Resolver()
//
//	// In place of a *dns.Client of github.com/miekg/dns:
//	r, rtt, err := c.ExchangeContext(ctx, m, "")
//
//	// As a forwarder, see [Server]; or with package dns:
//	dns.ListenAndServe(":53", "udp", dns.HandlerFunc(c.ServeDNS))
//
// # What hedging must not change
//
// The first answer wins, but a failure does not. After SERVFAIL, REFUSED, NOTIMP,
// FORMERR or a lame answer the Client asks the next server at once; it returns the
// failure only if no server does better. A SERVFAIL whose extended error (RFC 8914)
// names DNSSEC or a filter is final, because a server that does not validate or
// filter would give the answer that this one withholds. What a server says of DNSSEC
// counts only if it answers something, at least who serves the root. For the same
// reason Upstreams must be equivalent: they must answer the same questions in the same
// way. Put other servers into Fallback.
//
// # When servers fail
//
// A question is answered if one of the servers that may be asked answers it in time. These
// bounds hold (package internal/worlds plays them):
//
//   - A server that is silent about a question is asked again after its retransmission
//     timeout (RFC 6298): a second before anything is known of it, 200 ms at least, and up
//     to three times as long as its latest answers took. The timeout doubles with each
//     query that is lost, for all questions until the server answers. So one that comes
//     back is asked again after as long as it was silent, and a second, at the latest; and
//     one that loses more queries of a question than there is time for leaves that
//     without an answer. Another server that usually answers gets half of the time at least.
//   - A question has four attempts, hedges among them. The last one goes from server to
//     server, and waits for each as long as its timeout says, so that servers that all lose
//     queries take each other's time.
//   - The fourth query goes over TCP. The answer to it, or to the next one, comes three
//     seconds later at most than that of a resolver that asks all servers in turn. A
//     server without TCP loses the fourth query, and the next is sent after half of the
//     time that is left: then the answer may take all of Timeout.
//   - Answers pay for queries that are sent again, see Hedge. After 20 that had no answer
//     a silent server is asked once for each question, until an answer to that or to a
//     probe shows that it is back. Probes are ten seconds apart at most.
//   - When a server has said that it cannot answer, the next one is asked at once and for
//     nothing. If that one is silent, and from the third on, the budget pays for it, and
//     SERVFAIL of three servers is believed (RFC 9520): what fails everywhere must not be
//     asked everywhere. So when the budget is used up, a silent server that is back answers
//     no question in place of one that fails, until a probe finds it.
//   - A server that refuses or ends connections may restart, and is waited for unless
//     another answers, which costs no budget, silent or not. So is one that answers HTTP
//     status 429 or 503 without a Retry-After that is too long. Pauses double from 200 ms.
//     A failure that another server has answered is told at once, and so is the error
//     of a server that has been unavailable for as long as Timeout. A question may be what
//     ends its connection: it is asked again over connections of its own, up to eight times.
//   - An answer that does not fit a datagram, of a server that has no TCP, is an error
//     unless another server answers.
//   - Somebody who guesses IDs costs a server that does not repeat the spelling of names a
//     second query for each question, for ten minutes after the last guess: over TCP, or
//     if that fails over another socket. One that takes half of Timeout is then too late.
//
// # Operation
//
// A Client is operated as the clients of package hedge are. Its Observers are told of
// attempts, answers and refusals, in terms that all protocols share (package observe), and
// Trace in those of DNS. Logger tells what changed. Stats says what is known and was done,
// and package debug shows it on a page. SetEnabled switches hedging off and on.
//
// HEDGE_DISABLED and HEDGE_MODE in the environment have the values that the doc of package
// hedge lists. They are read when the Client is first used; HEDGE_MODE=shadow does what
// Hedge.Shadow does, and HEDGE_MODE=audit has no effect.
//
// # When it does not help
//
// Hedging does not help with a single upstream if a name is slow for every server,
// because the server already works on it. Such questions are hedged less and less:
// hedges that do not win lower their own budget. Nor does it help with a single
// server on the same machine, which is never late.
package dnshedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/observe"
)

const (
	defaultTimeout  = 5 * time.Second
	defaultInFlight = 2048
)

// Client asks DNS servers. The zero value asks the system's servers, with defaults and without a cache. Its fields must
// not be changed after first use. A Client is safe for concurrent use.
type Client struct {
	// Upstreams is a group of equivalent servers, in the order of preference, which
	// holds until their round trip times are known. Empty: the system's servers, which are
	// read again when they change. On Windows they are those of the network adapters, by
	// the adapters' metrics. On macOS they are those that scutil names, also for the names in
	// some domains only, as a VPN and files in /etc/resolver set them. Elsewhere, and where
	// there is no scutil, they are in /etc/resolv.conf.
	Upstreams []Upstream

	// Order says which of the Upstreams is asked first. Zero: OrderAuto.
	Order Order

	// Fallback lists servers for the case that all Upstreams fail. They are asked in
	// order, each after the one before it has failed, is found to be down, or is late. Upstreams get half of Timeout
	// for themselves, 5 s at most, and Fallback shares the rest; while Upstreams answer other questions, and most that are of the
	// same type, what Fallback says counts after 5 s, or when Timeout is nearly over. A failure
	// that a healthy server reports is its decision, as that of a filter or of a server
	// that validates, and is not put to Fallback. While all Upstreams are down, which
	// takes failures for three names in a row and a failed probe, Fallback is asked first. A probe asks for the
	// root's servers, names that the server was asked before, and a caller's name unless the order keeps it from the
	// server, as from Fallback while Upstreams answer.
	Fallback []Upstream

	// Exchanger is asked instead of Upstreams and Fallback, which must be empty, once for
	// each question. A Cache keeps its SERVFAIL for 5 s, and for twice as long each time it is
	// repeated, 20 s at most (RFC 9520 allows 5 minutes); those of servers for 1 to 5 s. Nil: the servers are asked.
	Exchanger Exchanger

	// Routes are asked instead of all others about the names in a domain, itself included.
	// The longest domain counts, and "." is the one of all names. Nil as a domain's
	// Exchanger: its names are asked as if there were no Routes. For the DS records of a domain's
	// own name those are asked who know about the name above it (RFC 4035 §3.1.4.1). An answer without RA that ends with an alias
	// is completed: its target is asked for where that name belongs, 16 targets at most. Export leaves such an answer out.
	Routes map[string]Exchanger

	// Hedge says when a question is asked a second time.
	Hedge Hedge

	// Cache keeps answers. Nil: no answer is kept. Callers that have the same question at the same
	// time share one exchange in either case; but for what is not kept, those whose context
	// leaves less time than Timeout ask for themselves.
	Cache *Cache

	// Timeout bounds an exchange with all its attempts. Zero: 5 s. It must not be
	// negative.
	Timeout time.Duration

	// MaxInFlight bounds the questions that wait for servers at a time, those with an address included. One more, and the
	// one that has waited longest, of those in the domain that most of them are in, ends with ErrTooManyQuestions, or SERVFAIL through
	// ServeDNS: names whose servers are dead must not hold up those whose are not. Zero:
	// 2048, which take some 40 MB. It must not be negative.
	MaxInFlight int

	// UDPSize is the longest datagram that servers may send, 512 to 4096 bytes.
	// Zero: 1232, which every path carries without fragments.
	UDPSize int

	// TLSConfig is for upstreams with a certificate: "tls" and "https". Nil: the
	// system's roots.
	TLSConfig *tls.Config

	// Dialer opens connections to upstreams. Nil: a net.Dialer. It must not resolve
	// names through this Client.
	Dialer Dialer

	// ResolvConf is where the system's servers are read if Upstreams is empty. A question that
	// waits for servers that are not named any more is put to those that are. A file that cannot be read changes
	// nothing; questions fail until it has been read. One that is missing or must not be read names the servers
	// 127.0.0.1 and ::1.
	// Empty: /etc/resolv.conf; on Windows the network adapters, on macOS scutil.
	ResolvConf string

	// SpecialUse says which special-use names are answered without asking a server. Zero:
	// SpecialUseLibrary.
	SpecialUse SpecialUse

	// Hosts is a file of addresses and their names, as /etc/hosts, that is asked before
	// anything else. It is read again within 5 s of a change, one of more than 64 KiB while
	// questions are answered as it said before. Until it has been read once, questions fail if it cannot be read.
	// Names in it have no other addresses, and the first 256 count; the TTL is 30 s. Empty: none. Resolver needs none, for Go reads /etc/hosts
	// by itself.
	Hosts string

	// RebindFilter keeps private addresses out of answers. Nil: all answers pass.
	RebindFilter *RebindFilter

	// Trace is told of attempts and answers, in the terms of DNS: names, types,
	// upstreams, caches. Nil: nobody is told.
	Trace *Trace

	// Name names the Client for Observers, metrics and the log. Empty: no name.
	Name string

	// Observers are told what happens to every question that is put to servers, in the
	// terms that HTTP and gRPC share: hedgeprom and hedgeotel have observers. What an
	// Exchanger does is for its own observers. They must not be nil. Empty: nobody is
	// told, and that costs nothing.
	Observers []observe.Observer

	// Logger logs changes of state, and never single questions: hedging of an upstream
	// is paused or resumed; its budget is exhausted, or at least half full again; an upstream
	// is silent or fails, or answers again; hedging is switched off or on; Import learns; and a
	// panic of an observer. The same message for the same upstream is logged at most once in ten
	// seconds. One goroutine calls the handler's Handle, in order, so that it may be slow or ask
	// this Client; while 1024 messages wait, others are dropped. Close waits for the messages,
	// and so a handler must not call it. Nil: only such a panic and a variable of the
	// environment that cannot be understood are logged, to slog.Default.
	Logger *slog.Logger

	once sync.Once
	core *core
	err  error // why the fields are invalid
}

var _ Exchanger = (*Client)(nil)

// errPanicked is the error of a Client whose first caller got the panic of a Logger.
var errPanicked = errors.New("dnshedge: Client.Logger panicked when the Client was first used")

// getCore makes the core when the Client is first used. It returns an error if a field is out of its limits.
func (c *Client) getCore() (*core, error) {
	c.once.Do(func() {
		c.err = errPanicked // unless newCore returns
		c.core, c.err = newCore(c)
	})
	return c.core, c.err
}

// init returns the core. The first call makes the core and reads the hosts file. After an error of the hosts file, the
// next call reads it again.
func (c *Client) init() (*core, error) {
	core, err := c.getCore()
	if err != nil {
		return nil, err
	}
	if core.hosts != nil {
		if err := core.hosts.Load(); err != nil {
			return nil, fmt.Errorf("dnshedge: Client.Hosts: %w", err)
		}
	}
	return core, nil
}

// Validate returns an error that names the field if one is out of its limits, or if the hosts file cannot be read. It
// returns nil if the Client can be used. It sends nothing. It also checks other Clients in Routes, and calls the
// Validate method of an Exchanger. A Server calls it before it serves.
func (c *Client) Validate() error {
	if _, err := c.init(); err != nil {
		return err
	}
	if err := validateExchanger("Exchanger", c.Exchanger); err != nil {
		return err
	}
	for _, domain := range slices.Sorted(maps.Keys(c.Routes)) {
		if err := validateExchanger(fmt.Sprintf("Routes[%q]", domain), c.Routes[domain]); err != nil {
			return err
		}
	}
	return nil
}

// validateExchanger returns why the Exchanger in a field of a Client cannot be used. Clients may
// refer to each other, and so it goes no further than one.
func validateExchanger(field string, e Exchanger) (err error) {
	switch e := e.(type) {
	case *Client:
		if e != nil {
			_, err = e.init()
		}
	case interface{ Validate() error }:
		err = e.Validate()
	}
	if err != nil {
		return fmt.Errorf("dnshedge: Client.%s: %w", field, err)
	}
	return nil
}

// validate returns an error if a field is out of its limits.
func (c *Client) validate() error {
	switch {
	case c.Timeout < 0:
		return fmt.Errorf("dnshedge: Client.Timeout is %v; want 0 or more", c.Timeout)
	case c.MaxInFlight < 0:
		return fmt.Errorf("dnshedge: Client.MaxInFlight is %d; want 0 or more", c.MaxInFlight)
	case c.UDPSize != 0 && (c.UDPSize < dns.MinMsgSize || c.UDPSize > transport.MaxDatagram):
		return fmt.Errorf("dnshedge: Client.UDPSize is %d; want 0, or 512 to 4096", c.UDPSize)
	case c.Exchanger != nil && len(c.Upstreams)+len(c.Fallback) > 0:
		return errors.New("dnshedge: Client.Exchanger is set, and so are Upstreams or Fallback; want one of them")
	}
	err := cmp.Or(c.Hedge.validate(), c.Order.validate(), c.SpecialUse.validate())
	if err == nil && c.RebindFilter != nil {
		err = c.RebindFilter.validate()
	}
	if err == nil && c.Cache != nil {
		err = c.Cache.validate()
	}
	return err
}

// SetEnabled switches hedging on or off, for questions that are asked from now on.
// Queries that are lost are still sent again, and learning goes on. It does nothing if the
// Client's fields are invalid, and does not override Hedge.Off.
func (c *Client) SetEnabled(on bool) {
	core, err := c.getCore()
	if err == nil && core.off.Swap(!on) == on {
		core.log.LogSwitch(on, "SetEnabled")
	}
}

// Close closes all connections, ends everything that runs in the background, and
// waits until it has ended; queries that this cancels end right after it. Exchanges that still wait fail, or end when their
// servers answer. Close always returns nil. Exchanges after Close fail.
func (c *Client) Close() error {
	core, err := c.getCore()
	if err != nil {
		return nil
	}
	core.closeAll()
	return nil
}

// Exchange is ExchangeContext without a context.
func (c *Client) Exchange(m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	return c.ExchangeContext(context.Background(), m, address)
}

// ExchangeContext answers the question of m, which it does not change. The
// response has m's ID and spelling, and an OPT record if and only if m has one; it
// shares no memory with the cache. The duration is how long the exchange took, 0 if
// the answer was in the cache.
//
// If address is empty, the Client's servers are asked. Otherwise only the server at
// address is asked, which is a host and port for UDP, or whatever ParseUpstream
// reads; a hedge goes to the same server, from another socket or over a second
// connection, and the answer is not kept.
//
// A question without RD asks what is known here. It is answered from Hosts, for special-use names,
// and by Routes; otherwise the response is REFUSED, also if the Cache has an answer.
//
// EDNS options of m are sent, except those that concern one path: cookies, padding and
// how long a connection may be idle. The server's are then in the response, which is
// not kept. An Exchanger with a method IgnoresOptions, as a recursor.Resolver has, gets none.
//
// As with dns.Client, a response that reports a failure is no error. Errors of an
// exchange are of type *Error, and wrap the cause; that of a context is not
// changed. Messages whose opcode is not QUERY (updates, notifications) are sent
// once, as they are, except for the ID; to the next server only if the one before
// it refuses the connection, or cannot be reached from here. A truncated response to one
// is returned without its records. Zone transfers, signed messages (TSIG, SIG(0)) and
// queries with records other than OPT are errors, and are not sent.
//
// A server that does not understand EDNS is asked without: DO, AD, CD and options are then not sent.
func (c *Client) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	core, err := c.init()
	if err != nil {
		return nil, 0, err
	}
	q, err := wire.NewQuery(m)
	if err != nil {
		return nil, 0, err
	}
	if address == "" && !lookup.HasCacheBypass(ctx) {
		if f, ok := core.answerFromFreshCache(ctx, q); ok {
			a, view, _ := f.answerFor(q)
			return a.Message(m, q, view), 0, nil
		}
	}
	start := time.Now()
	var stay context.Context
	if ctx.Done() == nil {
		stay = ctx
	}
	out := core.answerQuestion(ctx, stay, q, address)
	if out.err != nil {
		return nil, time.Since(start), out.err
	}
	r = out.answer.Message(m, q, out.view)
	return r, time.Since(start), nil
}
