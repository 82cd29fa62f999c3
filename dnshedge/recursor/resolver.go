// Package recursor is a DNS resolver that starts at the root and hedges: it asks the servers
// of each zone itself, sends a question to a second server when the first is late, and
// takes the first good answer.
//
//	c := &dnshedge.Client{Exchanger: new(recursor.Resolver), Cache: new(dnshedge.Cache)}
//
// The Client adds what a Resolver does not have: a cache of answers, failures included,
// stale answers, one exchange for callers with the same question, and a forwarder's side.
//
// A Resolver validates DNSSEC, unless Trust turns that off. It asks for the keys of signed zones beside the
// first question to them, passes over servers whose signatures do not fit, and answers SERVFAIL, with an
// extended error that says why, where no server is right. AD says that all of an answer is signed, from an anchor on. One that
// does not validate never sets AD, and passes on what validators need: DO, CD and RRSIG records.
package recursor

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Resolver answers questions by asking the servers of the zones, from the root down. The zero
// value asks the Internet's root servers, with the defaults below. Its fields must not be
// changed after first use. A Resolver is safe for concurrent use.
type Resolver struct {
	// Hints are addresses of root servers, of which one is asked for the others before
	// anything else (RFC 9609). They are never part of an answer. Nil: those of the
	// Internet's root.
	Hints []netip.Addr

	// Zones are zones whose servers are known, by name. These servers are asked, with
	// whatever address they have, and not those that the zone's parent names; they have
	// authority, or answer as if they had. They are asked without RD, which most recursive servers refuse. Zones that they delegate are asked as any others:
	// if their servers have private addresses, Zones needs these zones too, or PrivateOK must be
	// set. Zones may be special-use names, and may lie in each other. Nil: none.
	Zones map[string][]netip.AddrPort

	// Hedge says when a question goes to a second server.
	Hedge Hedge

	// Limits bound what one question of a caller may cost.
	Limits Limits

	// Trust is whom signatures are believed (DNSSEC). The zero value validates from the root's keys on that are built in.
	Trust dnssec.Trust

	// MaxBytes bounds the memory that is taken by what was learned, by an estimate:
	// servers, zones and their records. Zero: 64 MiB. It must not be less than 1 MiB.
	MaxBytes int64

	// Name names the Resolver in Stats, for metrics and the debug page. Empty: no name.
	Name string

	// Dialer opens connections to servers, over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// Trace is told of queries to servers and of answers. Nil: nobody is told.
	Trace *Trace

	// Logger is told, as warnings, of a zone whose answers are bogus, once an hour; of keys of the root that no anchor knows, once a
	// day; and of a clock at whose time the root's signatures are not valid, once an hour. A question waits until the handler has
	// returned. Nil: nobody is told.
	Logger *slog.Logger

	// NoMinimise sends the whole name to the servers of every zone, instead of no more of it
	// than they need (RFC 9156).
	NoMinimise bool

	// NoIPv4 and NoIPv6 keep the Resolver from asking servers at addresses of that family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows to ask servers at addresses that mean something in one network or on
	// one machine only. Without it, the public name of a server at such an address leads
	// nowhere, so that a stranger's zone cannot make this machine send queries into its own
	// network. Hints and Zones are always asked.
	PrivateOK bool

	once sync.Once // sets core
	core *core
}

// Dialer opens connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Hedge says when a query goes to a second server although the first may still answer.
// A field that is zero has its default. The zero value suits most programs.
//
// A server that has been asked before is late after its smoothed round trip time and four
// times the deviation (RFC 6298), 20 ms at least. A server that has not is late after a
// percentile of what first answers of servers took, 500 ms at most. The hedge goes to the next best server,
// if possible one that was never asked. When there is none, the name of one whose address is not
// known is looked up, and each query that this takes is a hedge; or the query is sent again, if the server has always
// answered.
//
// A hedge is no retransmission. Without hedges, a query that is still unanswered after its
// server's retransmission timeout goes to another server, which costs no budget. Nothing is hedged
// while more than half of the recent queries have no answer: then the network is down, and
// not a server slow.
type Hedge struct {
	// Off turns hedging off. Queries that are lost still go to other servers.
	Off bool

	// Percentile is a quantile, a fraction in [0, 1): this share of the first answers of servers is not hedged because
	// they come early enough. Zero: 0.65.
	Percentile float64

	// BudgetPercent bounds the hedges to this share of the other queries, plus a burst of
	// 20. Zero: 15. At most 100. NoBudget turns hedging off, as Off does.
	BudgetPercent float64

	// MaxPerSecond bounds the hedges besides. Zero: no bound.
	MaxPerSecond float64
}

// NoBudget is the BudgetPercent of a [Hedge] that pays for no hedge.
const NoBudget = -1

// Limits bound what one question of a caller may cost, so that nobody's zone can make a
// Resolver send many queries for one. A question that would exceed one ends with SERVFAIL and
// an extended error (RFC 8914) that names the limit. Zero values are the defaults.
type Limits struct {
	// Queries is how many are sent to servers for all that a question needs, and
	// ChainQueries how many of them for its own name, or for each of its aliases, and not to look up
	// servers' names. Hedges count for neither: Hedge bounds them. Zero: 64 and 32.
	Queries, ChainQueries int

	// ServerNames is how many names of servers are looked up because no address is known
	// for them, and ServerNamesPerZone how many of one zone's. Zero: 16 and 5. For ServerNames,
	// those that are looked up as hedges do not count. If 5 of a question have no address of either kind, names are only looked up among what
	// is known.
	ServerNames, ServerNamesPerZone int

	// Referrals is how many a question follows, Aliases how many CNAME and DNAME records.
	// Zero: 30 and 11.
	Referrals, Aliases int

	// InFlight is how many queries wait for one server's answers, and ZoneInFlight for
	// those of one zone's servers. Others wait. Zero: 64 and 256.
	InFlight, ZoneInFlight int

	// Verifications is what the wrong and superfluous signatures of a question may cost to verify, and an eighth of what all may: P-384 counts 10, RSA with more than 2,048 bits 5, any
	// other 1, and so does one that was verified for the question before. Zero: 128.
	Verifications int
	// NSEC3Iterations is up to how many iterations of their hash NSEC3 records prove something. The answers of
	// a zone that has more are insecure (RFC 9276 §3.2). Zero: 50. At most 500.
	NSEC3Iterations int
}
