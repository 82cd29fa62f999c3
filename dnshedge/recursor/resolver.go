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

// Resolver is a recursive DNS resolver. It resolves questions by queries to authoritative servers, starting at the
// root. The zero value uses the Internet's root servers, and each field has its default. Its fields must not be changed
// after first use. A Resolver is safe for concurrent use.
type Resolver struct {
	// Hints are addresses of root servers. The Resolver asks one of them for the current root servers (priming, RFC 9609).
	// Hints are never part of an answer. Nil means the Internet's root servers.
	Hints []netip.Addr

	// Zones are stub zones. For each zone name, it has the addresses of the servers that are queried instead of the
	// servers in the zone's delegation. The servers may have private addresses. They must be authoritative, or answer as
	// if they were. Nil means no stub zones.
	//
	// Queries to the servers have no RD bit, and most recursive servers refuse them. Zones may be special-use names, and a
	// zone may be within another zone.
	//
	// Referrals from one of these zones are followed as usual. If the servers of a child zone have private addresses, the
	// child zone must be in Zones too, or PrivateOK must be set.
	Zones map[string][]netip.AddrPort

	// Hedge configures hedges.
	Hedge Hedge

	// Limits limits the cost of one question.
	Limits Limits

	// Trust configures DNSSEC validation. The zero value validates with the built-in keys of the root.
	Trust dnssec.Trust

	// MaxBytes limits the estimated memory of learned data, in bytes: servers, zones and their records. 0 means 64 MiB.
	// Any other value must be at least 1 MiB.
	MaxBytes int64

	// Name is the name of the Resolver in Stats, for metrics and the debug page. It may be empty.
	Name string

	// Dialer opens connections to servers, with the networks "udp" and "tcp". Nil means a net.Dialer.
	Dialer Dialer

	// Trace observes queries to servers, and answers to questions. It is copied at the first use. Nil means no observer.
	Trace *Trace

	// Logger receives warnings:
	//
	//   - at most once an hour for each zone, that the zone has bogus answers
	//   - at most once a day, that root keys have no trust anchor
	//   - at most once an hour, that the clock is wrong, because the root's signatures are not valid at its time
	//
	// Questions wait until the log handler returns. If Logger is nil, nothing is logged.
	Logger *slog.Logger

	// NoMinimise disables query name minimisation (RFC 9156). The servers of every zone then see the full name of the
	// question, and not only the labels that they need.
	NoMinimise bool

	// NoIPv4 and NoIPv6 disable queries to servers over IPv4 or IPv6. At most one of them may be set.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows name servers with private addresses, which are meaningful only in one network or on one machine. By
	// default these servers are ignored, so that a foreign zone cannot make this machine send queries into its own
	// network. Addresses in Hints and Zones are always allowed.
	PrivateOK bool

	once sync.Once // sets core
	core *core
}

// Dialer opens connections to name servers. *net.Dialer implements it. It must be safe for concurrent use.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Hedge configures when a query is sent to a second server although the first server may still answer. Each zero field
// has its default. The zero value suits most programs.
//
// A server is late after its smoothed round trip time plus four times the deviation (RFC 6298), but not before 20 ms. A
// server that has never answered is late after a quantile of the first answers of all servers, but not later than 500
// ms.
//
// The hedge goes to the next best server, preferably to a server that has never answered. If there is none, a server
// name without a known address is looked up, and each query for this lookup is a hedge. Otherwise the query is
// repeated, if the server has answered its latest queries.
//
// A hedge is not a retransmission. Even without hedges, a query that is unanswered after its server's retransmission
// timeout is sent to another server. Retransmissions cost nothing of the hedge budget.
//
// While more than half of the recent queries are unanswered, no hedges are sent, because the network is probably down.
type Hedge struct {
	// Off disables hedges. Lost queries are still sent to other servers.
	Off bool

	// Percentile is the quantile of the first answers of servers after which a server that has never answered is late. It
	// must be at least 0 and less than 1. 0 means 0.65.
	Percentile float64

	// BudgetPercent limits the hedges to this percentage of the other queries, plus a burst of 20. It must be at most 100.
	// 0 means 15. NoBudget disables hedges, as Off does.
	BudgetPercent float64

	// MaxPerSecond limits the number of hedges per second, in addition to BudgetPercent. 0 means no limit.
	MaxPerSecond float64
}

// NoBudget is the BudgetPercent of a [Hedge] that allows no hedges.
const NoBudget = -1

// Limits limits the cost of one question, so that no zone can make a Resolver send many queries for it. A question that
// would exceed a limit ends with SERVFAIL and an extended error (RFC 8914) that names the limit. Each zero field has
// its default.
type Limits struct {
	// Queries is the maximum number of queries for a question, including lookups of server names. ChainQueries is the
	// maximum number of queries for the question's own name, and for each of its aliases.
	//
	// Hedges do not count, because Hedge limits them. 0 means 64 and 32.
	Queries, ChainQueries int

	// ServerNames is the maximum number of server names without a known address that are looked up for a question.
	// ServerNamesPerZone is the maximum for each zone. Lookups that are hedges do not count for ServerNames. 0 means 16
	// and 5.
	//
	// After 5 names without an address, further names are only looked up in the cache.
	ServerNames, ServerNamesPerZone int

	// Referrals is the maximum number of referrals that a question follows, and Aliases the maximum number of CNAME and
	// DNAME records. 0 means 30 and 11.
	Referrals, Aliases int

	// InFlight is the maximum number of queries in flight to one server, and ZoneInFlight the maximum to all servers of
	// one zone. Further queries wait. 0 means 64 and 256.
	InFlight, ZoneInFlight int

	// Verifications limits the cost of a question's invalid and superfluous signatures. All its signatures together may
	// cost eight times as much. 0 means 128.
	//
	// The verification of a P-384 signature costs 10, and that of an RSA signature with more than 2,048 bits costs 5. Any
	// other signature costs 1, and so does a repeated verification for the same question.
	Verifications int
	// NSEC3Iterations is the maximum number of hash iterations of NSEC3 records. If a zone uses more, its answers are
	// insecure (RFC 9276 §3.2). It must be at most 500. 0 means 50.
	NSEC3Iterations int
}
