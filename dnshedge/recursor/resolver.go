// Package recursor is a recursive DNS resolver that hedges. It starts at the root and queries the authoritative servers of
// each zone. It sends a query to a second server when the first is late, and takes the first good answer.
//
//	c := &dnshedge.Client{Exchanger: new(recursor.Resolver), Cache: new(dnshedge.Cache)}
//
// The Client adds a cache of answers and failures, stale answers, one exchange for callers with the same question, and the
// features of a forwarder.
//
// A Resolver validates DNSSEC, unless Trust turns that off. It queries the keys of signed zones in parallel with the first
// question to them, and rejects servers with invalid signatures. If no server has a valid answer, the response is SERVFAIL
// with an extended error.
//
// AD means that the whole answer is signed, in a chain of trust from an anchor. A Resolver without validation never sets AD.
// It passes on the data that a validator needs: DO, CD and RRSIG records.
package recursor

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Resolver is a recursive DNS resolver: it resolves questions by queries to the authoritative servers, from the root
// down. The zero value uses the Internet's root servers, with the defaults below. Its fields must not be changed
// after first use. A Resolver is safe for concurrent use.
type Resolver struct {
	// Hints are addresses of root servers. The Resolver asks one of them for the current root servers (priming, RFC
	// 9609). Hints are never part of an answer. Nil: the Internet's root servers.
	Hints []netip.Addr

	// Zones are stub zones: the servers to query for a zone, by zone name, in place of the servers in its
	// delegation. The servers may have any address. They must be authoritative, or answer as if they were. Nil:
	// none.
	//
	// Queries to the servers have no RD bit, and most recursive servers refuse that. Zones may be special-use names,
	// and may lie in each other.
	//
	// A delegation from one of these zones is followed as usual. If its servers have private addresses, the child
	// zone must be in Zones too, or PrivateOK must be set.
	Zones map[string][]netip.AddrPort

	// Hedge configures hedges.
	Hedge Hedge

	// Limits bounds the cost of one question.
	Limits Limits

	// Trust configures DNSSEC validation. The zero value validates with the built-in keys of the root.
	Trust dnssec.Trust

	// MaxBytes bounds the estimated memory of learned data: servers, zones and their records. Zero: 64 MiB.
	// Otherwise at least 1 MiB.
	MaxBytes int64

	// Name is the name of the Resolver in Stats, for metrics and the debug page. Empty: no name.
	Name string

	// Dialer opens connections to servers, over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// Trace observes queries to servers, and answers. Nil: no observer.
	Trace *Trace

	// Logger receives warnings: about a zone with bogus answers and about a wrong clock once an hour, about root
	// keys without a trust anchor once a day. Nil: nothing is logged.
	//
	// The clock is wrong if the root's signatures are not valid at its time. A question waits until the handler of
	// the Logger has returned.
	Logger *slog.Logger

	// NoMinimise disables query name minimisation (RFC 9156): the servers of every zone get the full name, in place
	// of the labels that they need.
	NoMinimise bool

	// NoIPv4 and NoIPv6 disable queries to servers at addresses of that family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows name servers with private addresses: addresses that are meaningful only in one network or on
	// one machine. By default such a server is ignored, so that a foreign zone cannot make this machine send queries
	// into its own network. Addresses in Hints and Zones are always allowed.
	PrivateOK bool

	once sync.Once // sets core
	core *core
}

// Dialer opens connections. *net.Dialer implements it.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Hedge configures when a query goes to a second server although the first may still answer. A field that is zero
// has its default. The zero value suits most programs.
//
// A server is late after its smoothed round trip time plus four times the deviation (RFC 6298), at least 20 ms. A
// server that has never answered is late after a quantile of the first answers of all servers, at most 500 ms.
//
// The hedge goes to the next best server, if possible to one that has never answered. If there is none, a server
// name without a known address is looked up, and each query for that is a hedge. Otherwise the query is repeated, if
// the server has answered its latest queries.
//
// A hedge is no retransmission. Without hedges, a query that is unanswered after its server's retransmission timeout
// goes to another server, at no cost for the budget. Nothing is hedged while more than half of the recent queries
// are unanswered, because then the network is down.
type Hedge struct {
	// Off turns hedging off. Lost queries still go to other servers.
	Off bool

	// Percentile is the quantile of the first answers of servers after which a server that has never answered is
	// late: a fraction in [0, 1). Zero: 0.65.
	Percentile float64

	// BudgetPercent bounds the hedges to this percentage of the other queries, plus a burst of 20. At most 100.
	// Zero: 15. NoBudget turns hedging off, as Off does.
	BudgetPercent float64

	// MaxPerSecond also bounds the rate of hedges. Zero: no bound.
	MaxPerSecond float64
}

// NoBudget is the BudgetPercent of a [Hedge] that allows no hedge.
const NoBudget = -1

// Limits bounds the cost of one question, so that no zone can make a Resolver send many queries for it. A question
// that would exceed a limit ends with SERVFAIL and an extended error (RFC 8914) that names the limit. Zero values
// have the defaults below.
type Limits struct {
	// Queries is the number of queries for a question, including lookups of server names. ChainQueries is the number
	// of queries for its own name, and for each of its aliases. Hedges count for neither, because Hedge bounds them.
	// Zero: 64 and 32.
	Queries, ChainQueries int

	// ServerNames is the number of server names without a known address that are looked up for a question, and
	// ServerNamesPerZone the number for one zone. Lookups as hedges do not count for ServerNames. After 5 names
	// without an address, further names are only looked up in the cache. Zero: 16 and 5.
	ServerNames, ServerNamesPerZone int

	// Referrals is the number of referrals that a question follows, and Aliases the number of CNAME and DNAME records.
	// Zero: 30 and 11.
	Referrals, Aliases int

	// InFlight is the number of queries in flight to one server, and ZoneInFlight the number to all servers of one
	// zone. Further queries wait. Zero: 64 and 256.
	InFlight, ZoneInFlight int

	// Verifications limits the cost of a question's invalid and superfluous signatures. The cost of all its
	// signatures is limited to eight times as much. P-384 costs 10, RSA with more than 2,048 bits costs 5, and any
	// other signature 1. So does a signature that was already verified for the question. Zero: 128.
	Verifications int
	// NSEC3Iterations is the highest number of hash iterations of NSEC3 records. The answers of a zone with more are
	// insecure (RFC 9276 §3.2). At most 500. Zero: 50.
	NSEC3Iterations int
}
