// Package dnshedge is a DNS client that hides lost packets, stalled connections
// and slow servers from its callers.
//
// A [Client] sends a query to the best of a group of equivalent servers. If the
// answer is late, it sends a hedge: the same question from another socket or over
// another connection, to another server if possible.
//
// The delay after which an answer counts as late is learned (see [Hedge]). A budget
// limits the hedges to 5 % of the queries.
//
// A Client supports UDP, TCP, TLS and HTTPS, keeps connections open, and may have a
// [Cache]. The module dnshedge/quic adds DNS over QUIC and HTTP/3.
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
//	// As a forwarder, see package forward and [Server]; or with package dns:
//	dns.ListenAndServe(":53", "udp", dns.HandlerFunc(c.ServeDNS))
//
// # What hedging must not change
//
// The first answer wins, but a failure does not. After SERVFAIL, REFUSED, NOTIMP,
// FORMERR or a lame answer the Client asks the next server at once. It returns the
// failure only if no server gives an answer.
//
// A SERVFAIL whose extended error (RFC 8914) names DNSSEC or a filter is final: a server
// without validation or filter would give the answer that this server withholds. The
// extended error counts only for a server that has answered some question, at least the
// question for the root's servers.
//
// For the same reason Upstreams must be equivalent: they must answer the same questions in
// the same way. Put other servers into Fallback.
//
// # When servers fail
//
// A question is answered if one of the servers that may be asked answers it in time. The
// simulations of package internal/worlds check these bounds:
//
//   - A silent server is asked again after its retransmission timeout (RFC 6298). The
//     timeout is 1 s before the first measurement, 200 ms at least, and up to three times
//     as long as the latest answers took. It doubles with each lost query, for all questions,
//     until the server answers. So a server that answers again is found at the latest after
//     as long as it was silent, plus a second. A server that loses more queries of a question
//     than fit into Timeout leaves the question unanswered. Another server that usually
//     answers gets at least half of the time.
//   - A question has up to four attempts, including hedges. The last attempt sends further
//     queries, each after the timeout of the one before, and uses the first answer to any of
//     them. So servers that all lose queries use up each other's time.
//   - The fourth query is sent over TCP. The answer to it, or to the next query, comes at
//     most three seconds later than with a resolver that asks all servers in rotation. A
//     server without TCP loses the fourth query, and the next query follows after half of
//     the remaining time. Then the answer may take all of Timeout.
//   - Answers pay for retransmissions, see Hedge. After 20 retransmissions without an answer,
//     a silent server is asked once for each question, until it answers such a query or a
//     probe. Probes are at most ten seconds apart.
//   - After a failure response, the next server is asked at once, without cost. If this
//     server is silent, the budget pays for asking it, and it pays for the third and all
//     later servers. If a server answers the question, the budget gets these tokens back.
//     After SERVFAIL from three servers the failure is returned (RFC 9520). So if the budget
//     is used up, a silent server that works again does not replace a failing server until a
//     probe finds it.
//   - A server that refuses or ends connections may be restarting. It is asked again after
//     pauses that double from 200 ms, unless another server answers. This costs no budget. The
//     same holds for HTTP status 429 and 503, unless Retry-After is too long. A failure
//     response from another server is returned at once. So is the error of a server that has
//     been unavailable for as long as Timeout. If a question may be the reason why its
//     connection ended, it is asked again over separate connections, up to eight times.
//   - A server may allow fewer streams over a connection of HTTPS or QUIC than there are
//     questions. Then further connections are opened, at most as many at a time as are open.
//     The questions that wait longest are sent last, and fail if they have no time left.
//   - An answer that does not fit into a datagram, from a server without TCP, is an error
//     unless another server answers.
//   - An attacker who guesses IDs costs a second query for each question, if the server does
//     not repeat the spelling of names. This lasts for ten minutes after the last guess. The
//     second query is sent over TCP, or over another socket if TCP fails. A server that
//     takes half of Timeout to answer then answers too late.
//
// # Operation
//
// A Client is operated like the clients of package hedge. Observers receive events about
// attempts, answers and denied hedges, in the form that all protocols share (package observe).
// Trace receives events with DNS names and upstreams. Logger logs changes of state. Stats
// returns counters and measurements, which package debug shows on a page. SetEnabled
// switches hedging off and on.
//
// The environment variables HEDGE_DISABLED and HEDGE_MODE have the values that the
// documentation of package hedge lists. They are read when the Client is first used.
// HEDGE_MODE=shadow has the effect of Hedge.Shadow, and HEDGE_MODE=on ends it. HEDGE_MODE=audit
// and HEDGE_BUDGET_PERCENT have no effect; the latter is logged.
//
// # When it does not help
//
// Hedging does not help with a single upstream if a name is slow for every server,
// because the server already works on the question. Such questions are hedged less and
// less: hedges that do not win lower their own budget. Nor does hedging help with a single
// server on the same machine, because such a server is never late.
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

// Client sends DNS queries to servers and returns their answers. The zero value asks the system's servers, with
// defaults and without a cache. Its fields must not be changed after first use. A Client is safe for concurrent use.
type Client struct {
	// Upstreams is a group of equivalent servers, in the order of preference. The order applies until their round trip
	// times have been measured.
	//
	// Empty: the system's servers, which are read again when they change. On Windows they are those of the network
	// adapters, in the order of the adapters' metrics. On macOS scutil lists them, including servers for single
	// domains, which a VPN or a file in /etc/resolver sets. On other systems, and without scutil, they are in
	// /etc/resolv.conf.
	Upstreams []Upstream

	// Order says which of the Upstreams is asked first. Zero: OrderAuto.
	Order Order

	// Fallback lists servers that are asked when all Upstreams fail. They are asked in order: each server is asked when
	// the server before it has failed, is down, or is late. Upstreams get half of Timeout, at most 5 s, before Fallback
	// is asked. The servers in Fallback share the rest.
	//
	// An answer of Fallback is held back while Upstreams answer other questions, and most questions of the same type.
	// It is used after 5 s, or when Timeout is nearly over. A failure that a healthy server decides on is final, for
	// example that of a filter or a validating server: Fallback is not asked.
	//
	// Upstreams are down after failures for three names in a row and a failed probe, which is a query that tests a
	// server. While all Upstreams are down, Fallback is asked first.
	//
	// Probes ask for the root's servers, for names that the server was asked before, or for a caller's name. They do
	// not send a caller's name to servers that must not see it yet, such as Fallback while Upstreams answer.
	Fallback []Upstream

	// Exchanger is asked instead of Upstreams and Fallback, which must be empty. It is asked once for each question.
	// Nil: the servers are asked.
	//
	// A Cache stores a SERVFAIL of an Exchanger for 5 s, and twice as long after each further SERVFAIL in a row, at
	// most 20 s. RFC 9520 allows 5 minutes. It stores a SERVFAIL of servers for 1 to 5 s.
	Exchanger Exchanger

	// Routes lists Exchangers that are asked, instead of the servers, about the names in a domain, including the
	// domain's own name. The longest matching domain applies, and "." matches all names. With a nil Exchanger, the
	// servers are asked as if there were no Routes.
	//
	// For the DS records of a domain's own name the parent domain applies (RFC 4035 §3.1.4.1). If an answer without RA
	// ends with an alias, the Client also asks for the alias's target, by the route of the target. It follows at most
	// 16 targets. Export omits these answers.
	Routes map[string]Exchanger

	// Hedge configures when hedges are sent, and how many.
	Hedge Hedge

	// Cache stores answers. Nil: no answer is stored. Callers with the same question at the same time share an
	// exchange, with or without a Cache. The exception is an answer that is not stored: a caller whose context ends
	// before Timeout then has its own exchange.
	Cache *Cache

	// Timeout limits an exchange with all its attempts. Zero: 5 s. It must not be negative.
	Timeout time.Duration

	// MaxInFlight limits the questions that wait for servers at a time, including questions that ExchangeContext sends
	// to an address. Zero: 2048, which take about 40 MB. It must not be negative.
	//
	// When one more question comes, a waiting question ends with ErrTooManyQuestions, or with SERVFAIL through
	// ServeDNS. It is the oldest question of the domain with the most waiting questions. So names whose servers are
	// dead do not displace other names.
	MaxInFlight int

	// UDPSize is the longest datagram that servers may send, from 512 to 4096 bytes. Zero: 1232, which every path
	// transports without fragmentation.
	UDPSize int

	// TLSConfig is the configuration for "tls" and "https" upstreams. Nil: the defaults of package tls, with the
	// system's root certificates.
	TLSConfig *tls.Config

	// Dialer opens connections to upstreams. Nil: a net.Dialer. It must not resolve names through this Client.
	Dialer Dialer

	// ResolvConf is the file that names the system's servers if Upstreams is empty. When the servers in it change,
	// waiting questions are sent to the new servers. Empty: /etc/resolv.conf; on Windows the network adapters, and on
	// macOS scutil.
	//
	// An error in reading the file changes nothing; before the first successful read it makes questions fail. A file
	// that is missing, or that the process has no permission to read, stands for the servers 127.0.0.1 and ::1.
	ResolvConf string

	// SpecialUse says which special-use names are answered without asking a server. Zero: SpecialUseLibrary.
	SpecialUse SpecialUse

	// Hosts is the path of a hosts file, such as /etc/hosts, which is searched before the cache and the servers. Empty:
	// none. Resolver needs none, because Go's resolver reads /etc/hosts itself.
	//
	// A name in the file has no other addresses. At most 256 addresses of a name are used, and their TTL is 30 s. The
	// file is read again within 5 s of a change; a file above 64 KiB is read in the background. Until the first
	// successful read, an error in reading the file makes questions fail.
	Hosts string

	// RebindFilter removes private addresses from answers. Nil: no address is removed.
	RebindFilter *RebindFilter

	// Trace receives events about attempts and answers, with names, types and upstreams. Nil: no events.
	Trace *Trace

	// Name identifies the Client in Observers, metrics and the log. Empty: no name.
	Name string

	// Observers receive events about every question that is sent to servers, in the form that HTTP and gRPC share.
	// Packages hedgeprom and hedgeotel contain observers. Questions to an Exchanger cause no events. The observers must
	// not be nil. Empty: no events, at no cost.
	Observers []observe.Observer

	// Logger logs changes of state, and never single questions:
	//
	//   - hedging of an upstream is paused or resumed,
	//   - the hedge budget of an upstream is exhausted, or at least half full again,
	//   - an upstream is silent or fails, or answers again,
	//   - hedging is switched off or on,
	//   - Import has added measurements and answers,
	//   - an observer panics.
	//
	// The same message for the same upstream is logged at most once in ten seconds. A single goroutine calls the
	// handler, in order. So the handler may be slow or ask this Client. While 1024 messages wait, further messages are
	// dropped. Close waits for the messages, so the handler must not call Close.
	//
	// Nil: only panics of observers and invalid environment variables are logged, to slog.Default.
	Logger *slog.Logger

	once sync.Once
	core *core
	err  error // the first invalid field; nil if all fields are valid
}

var _ Exchanger = (*Client)(nil)

// errPanicked is the error of a Client whose Logger panicked during first use. The first caller got the panic itself.
var errPanicked = errors.New("dnshedge: Client.Logger panicked when the Client was first used")

// getCore returns the internal state of the Client, which the first call creates. Every call returns the same error if
// a field is invalid.
func (c *Client) getCore() (*core, error) {
	c.once.Do(func() {
		c.err = errPanicked // unless newCore returns
		c.core, c.err = newCore(c)
	})
	return c.core, c.err
}

// init returns the internal state of the Client, and makes sure that the hosts file was read. If reading the file
// fails, init returns the error, and the next call reads the file again.
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

// Validate returns nil if the Client can be used. Otherwise the error names the invalid field or the unreadable hosts
// file. Validate sends nothing. It also validates the Exchanger and the Exchangers in Routes that are Clients, or that
// have a method Validate() error, unless they ask this Client in turn (through Unwrap). A Server calls Validate first.
func (c *Client) Validate() error {
	core, err := c.init()
	if err != nil {
		return err
	}
	if err := core.validateExchanger("Exchanger", c.Exchanger); err != nil {
		return err
	}
	for _, domain := range slices.Sorted(maps.Keys(c.Routes)) {
		if err := core.validateExchanger(fmt.Sprintf("Routes[%q]", domain), c.Routes[domain]); err != nil {
			return err
		}
	}
	return nil
}

// validateExchanger returns an error if e is a Client that cannot be used, or if the optional method Validate of e
// returns an error. field is the name of the Client's field that contains e, for the error.
func (c *core) validateExchanger(field string, e Exchanger) (err error) {
	switch e := e.(type) {
	case *Client:
		if e != nil {
			_, err = e.init() // without its Exchangers, because two Clients may refer to each other
		}
	case interface{ Validate() error }:
		if !c.isAskedBy(e) { // otherwise the validation might never end
			err = e.Validate()
		}
	}
	if err != nil {
		return fmt.Errorf("dnshedge: Client.%s: %w", field, err)
	}
	return nil
}

// validate returns an error that names the first invalid field, or nil. It does not validate Observers, Upstreams,
// Fallback and Routes, which newCore validates afterwards.
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

// SetEnabled switches hedging on or off for later questions. Retransmissions of lost queries and latency measurements
// continue. SetEnabled does nothing if the Client's fields are invalid, and does not override Hedge.Off.
func (c *Client) SetEnabled(on bool) {
	core, err := c.getCore()
	if err == nil && core.off.Swap(!on) == on {
		core.log.LogSwitch(on, "SetEnabled")
	}
}

// Close closes all connections, cancels the background work and waits for its end. An exchange that is still waiting
// fails or returns its answer, possibly shortly after Close has returned. Later exchanges fail. Close always returns
// nil.
func (c *Client) Close() error {
	core, err := c.getCore()
	if err != nil {
		return nil
	}
	core.closeAll()
	return nil
}

// Exchange does the same as ExchangeContext with context.Background(): it answers the question of m, and returns the
// response and the duration. If address is not empty, only the server at address is asked. The signature is that of the
// method of a *dns.Client.
func (c *Client) Exchange(m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	return c.ExchangeContext(context.Background(), m, address)
}

// ExchangeContext answers the question of m, and returns the response and the duration of the call. If address is
// empty, the Client's servers are asked. Otherwise only the server at address is asked: a host and port for UDP, or any
// string that ParseUpstream accepts.
//
//   - m is not changed. The response has its ID, the letter case of its name, and an OPT record if and only if m has
//     one. The response shares no memory with the cache. For an answer from the cache, rtt may be 0.
//   - A response with a failure code, such as SERVFAIL, is not an error. Without a response, the error is an *Error
//     that wraps the cause. If ctx ends first, the cause is the error of ctx, or the cause with which ctx was
//     cancelled.
//   - With an empty address, a question without the flag RD is answered only from Hosts, for special-use names, and by
//     Routes. Otherwise the response is REFUSED.
//   - EDNS options of m are sent, except cookies, padding, keepalive and extended errors. Responses to them are not
//     cached. An Exchanger with a method IgnoresOptions() gets no options.
//   - A server that does not understand EDNS is asked again without EDNS and the flags DO, AD and CD.
//   - A message whose opcode is not QUERY is sent once. It goes to the next server only if the previous server cannot
//     have received it. A truncated response to it is returned without records.
//   - Answers of the server at address are not cached. A hedge goes to the same server.
//   - Zone transfers, signed messages (TSIG, SIG(0)) and queries with records other than OPT are errors. They are not
//     sent.
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
			a, view, _ := f.toAnswer(q)
			return a.Message(m, q, view), 0, nil
		}
	}
	start := time.Now()
	var inlineCtx context.Context
	if ctx.Done() == nil {
		inlineCtx = ctx
	}
	out := core.answerQuestion(ctx, inlineCtx, q, address)
	if out.err != nil {
		return nil, time.Since(start), out.err
	}
	r = out.answer.Message(m, q, out.view)
	return r, time.Since(start), nil
}

// Order determines the order in which a Client queries its Upstreams, and to which of them it sends hedges. The zero
// value is OrderAuto.
type Order int

// The orders.
const (
	// OrderAuto is OrderFastest for Upstreams. For the system's servers it is OrderStrict, in the order of resolv.conf,
	// or OrderFastest if resolv.conf has the option rotate.
	OrderAuto Order = iota

	// OrderFastest is for servers that all give the same answers. The server with the shortest round trip time is asked
	// first, and a hedge goes to another server.
	OrderFastest

	// OrderStrict is for servers that may know different names, such as a VPN's server and a public one. The first
	// server is asked first, and hedges go to the same server.
	//
	// The next server is asked when the server before it has failed, is down, or has used its share of Timeout, at
	// most 5 s. A down server is asked last.
	//
	// A late server is still waited for. While it answers other questions, and most questions of the same type, the
	// answer of the next server is held back. It is used after 5 s, as in other resolvers, or when Timeout is nearly
	// over.
	//
	// A probe does not send a server a name that was only sent to the servers before it.
	OrderStrict
)

func (o Order) validate() error {
	if o < OrderAuto || o > OrderStrict {
		return fmt.Errorf("dnshedge: Client.Order is %d; want OrderAuto, OrderFastest or OrderStrict", o)
	}
	return nil
}

// SpecialUse determines which special-use names (RFC 6761) a Client answers itself, without a query. Public servers
// cannot answer these names. The zero value is SpecialUseLibrary, which answers localhost, invalid, onion and alt.
//
// A route in Client.Routes has precedence, even with a nil Exchanger. The exception is the route ".". ExchangeContext
// with an address asks the server at this address for every name.
type SpecialUse int8

const (
	// SpecialUseLibrary answers the names that the RFCs ask every program to answer:
	// localhost, invalid (RFC 6761), onion (RFC 7686) and alt (RFC 9476).
	SpecialUseLibrary SpecialUse = iota

	// SpecialUseForwarder answers, in addition, the names that the RFCs ask a caching server to answer by default:
	//
	//   - test (RFC 6761), home.arpa (RFC 8375), resolver.arpa (RFC 9462) and service.arpa (RFC 9665),
	//   - local and the reverse zones of link-local addresses (RFC 6762),
	//   - the reverse zones of other addresses without a public meaning (RFC 6303, RFC 7793).
	//
	// This value is for DNS servers. Other programs must ask their DNS server for these names, because it may know them.
	SpecialUseForwarder

	// SpecialUseOff asks the servers for every name.
	SpecialUseOff
)

func (s SpecialUse) validate() error {
	if s < SpecialUseLibrary || s > SpecialUseOff {
		return fmt.Errorf("dnshedge: Client.SpecialUse is %d; want SpecialUseLibrary, SpecialUseForwarder or SpecialUseOff", s)
	}
	return nil
}
