// Package recursor is a recursive DNS resolver that hedges. It starts at the root and asks the servers of each zone. It
// sends a query to a second server when the first is late, and takes the first good answer.
//
//	c := &dnshedge.Client{Exchanger: new(recursor.Resolver), Cache: new(dnshedge.Cache)}
//
// The Client adds a cache of answers and failures, stale answers, one exchange for callers with the same question, and the
// features of a forwarder.
//
// A Resolver validates DNSSEC, unless Trust turns that off. It queries the keys of signed zones in parallel with the first
// question to them, and rejects servers with invalid signatures. If no server has a valid answer, the response is SERVFAIL
// with an extended error. AD means that the whole answer is signed, in a chain of trust from an anchor. A Resolver without
// validation never sets AD, and passes on the data for validators: DO, CD and RRSIG records.
package recursor

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Resolver answers questions by asking the servers of the zones, from the root down. The zero value asks the Internet's
// root servers, with the defaults below. Its fields must not be changed after first use. A Resolver is safe for concurrent
// use.
type Resolver struct {
	// Hints are addresses of root servers. One of them is asked for the root servers before anything else (RFC 9609). They
	// are never part of an answer. Nil: the Internet's root servers.
	Hints []netip.Addr

	// Zones has the servers of zones by zone name, in place of the servers that the parent names. They may have any
	// address and must have authority, or answer as if they had. They are queried without RD, which most recursive servers
	// refuse. Zones may be special-use names, and may lie in each other. Nil: none.
	//
	// A delegation from one of these zones is followed as usual. If its servers have private addresses, that zone must be
	// in Zones too, or PrivateOK must be set.
	Zones map[string][]netip.AddrPort

	// Hedge configures hedges.
	Hedge Hedge

	// Limits bound the cost of one question.
	Limits Limits

	// Trust configures DNSSEC validation. The zero value validates with the built-in keys of the root.
	Trust dnssec.Trust

	// MaxBytes bounds the estimated memory of the learned data: servers, zones and their records. Zero: 64 MiB. It must
	// not be less than 1 MiB.
	MaxBytes int64

	// Name names the Resolver in Stats, for metrics and the debug page. Empty: no name.
	Name string

	// Dialer opens connections to servers, over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// Trace observes queries to servers and answers. Nil: no observer.
	Trace *Trace

	// Logger receives warnings: of a zone with bogus answers once an hour, of root keys without a trust anchor once a day,
	// and of a wrong clock once an hour. The clock is wrong if the root's signatures are not valid at its time. A question
	// waits until the handler has returned. Nil: nothing is logged.
	Logger *slog.Logger

	// NoMinimise sends the whole name to the servers of every zone, in place of the part that they need (RFC 9156).
	NoMinimise bool

	// NoIPv4 and NoIPv6 disable queries to servers at addresses of that family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows servers at addresses that are meaningful only in one network or on one machine. Without it, such an
	// address of a public name server is ignored, so that a foreign zone cannot make this machine send queries into its
	// own network. Hints and Zones are always allowed.
	PrivateOK bool

	once sync.Once // sets core
	core *core
}

// Dialer opens connections. *net.Dialer implements it.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Hedge configures when a query goes to a second server although the first may still answer. A field that is zero has
// its default. The zero value suits most programs.
//
// A server that has answered before is late after its smoothed round trip time plus four times the deviation (RFC 6298),
// at least 20 ms. An unknown server is late after a percentile of the first answers of all servers, at most 500 ms. The
// hedge goes to the next best server, if possible to an unknown one. If there is none, a server name without a known
// address is looked up, and each query for that is a hedge. Otherwise the query is repeated, if the server has always
// answered.
//
// A hedge is no retransmission. Without hedges, a query that is unanswered after its server's retransmission timeout goes
// to another server, at no cost for the budget. Nothing is hedged while more than half of the recent queries are
// unanswered, because then the network is down.
type Hedge struct {
	// Off turns hedging off. Lost queries still go to other servers.
	Off bool

	// Percentile is a quantile, a fraction in [0, 1): this share of the first answers of servers is not hedged because
	// they come early enough. Zero: 0.65.
	Percentile float64

	// BudgetPercent bounds the hedges to this percentage of the other queries, plus a burst of 20. Zero: 15. At most 100.
	// NoBudget turns hedging off, as Off does.
	BudgetPercent float64

	// MaxPerSecond also bounds the rate of hedges. Zero: no bound.
	MaxPerSecond float64
}

// NoBudget is the BudgetPercent of a [Hedge] that pays for no hedge.
const NoBudget = -1

// Limits bound the cost of one question, so that no zone can make a Resolver send many queries for it. A question that
// would exceed a limit ends with SERVFAIL and an extended error (RFC 8914) that names the limit. Zero values are the
// defaults.
type Limits struct {
	// Queries is the number of queries for a question, including lookups of server names. ChainQueries is the number of
	// queries for its own name, or for each of its aliases. Hedges count for neither; Hedge bounds them. Zero: 64 and 32.
	Queries, ChainQueries int

	// ServerNames is the number of server names without a known address that are looked up, and ServerNamesPerZone the
	// number of one zone's. Lookups as hedges do not count for ServerNames. After 5 names without an address, further
	// names are only looked up in the cache. Zero: 16 and 5.
	ServerNames, ServerNamesPerZone int

	// Referrals is the number of referrals that a question follows, and Aliases the number of CNAME and DNAME records.
	// Zero: 30 and 11.
	Referrals, Aliases int

	// InFlight is the number of queries in flight to one server, and ZoneInFlight to the servers of one zone. Further
	// queries wait. Zero: 64 and 256.
	InFlight, ZoneInFlight int

	// Verifications limits the cost of a question's invalid and superfluous signatures. All its signatures may cost eight
	// times as much. P-384 costs 10, RSA with more than 2,048 bits 5, any other 1, and a signature that was already
	// verified for the question 1. Zero: 128.
	Verifications int
	// NSEC3Iterations is the highest number of hash iterations with which NSEC3 records are evaluated. With more, the
	// answers of the zone are insecure (RFC 9276 §3.2). Zero: 50. At most 500.
	NSEC3Iterations int
}
