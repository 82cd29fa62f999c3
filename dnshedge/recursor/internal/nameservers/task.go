package nameservers

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// A Task is a question to the servers of one zone.
type Task struct {
	Name string // absolute, in lower case, as from dns.CanonicalName
	Type uint16
	DO   bool // DO bit: signatures are requested
	CD   bool // CD bit

	// RequireSignatures is set for a signed zone. Then a server that does not support EDNS counts as lame, because
	// it cannot send signatures. It is not queried without EDNS.
	RequireSignatures bool

	Zone      string // absolute, in lower case
	PrivateOK bool   // private addresses are allowed
	Minimised bool   // the name is minimised (RFC 9156): unresponsive servers cause no backoff of the zone

	// EndEarly shortens the task if no response comes, because another question is likelier to succeed. The task
	// sends no query after earlyEndTime, and does not wait for overdue queries. CheckResponse may set it.
	EndEarly bool
	// AwaitUntil returns the time until which the task waits for answers when all queries are overdue and no
	// response has come. The time may become later. If it is zero or the function is nil, each query waits until its
	// loserDeadline.
	AwaitUntil func() time.Time

	// Servers are the addresses known at first, in any order.
	//
	// FindServers returns further addresses. It blocks until it has found some. It returns none if there are no more
	// within the scope, or an error with which the task may end. Nil: there are no more.
	//
	// FindServers runs on a goroutine of its own, one call at a time and concurrently with the functions below. All
	// calls get the same context, which ends some time after the task. needed is closed when the task has no other
	// server to query. Until then, the search is a hedge.
	Servers     []netip.AddrPort
	FindServers func(ctx context.Context, e SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error)

	// CheckResponse returns nil to accept a response, or an error to reject it. Then the next server is queried at
	// once. The response has the ID and the question of the query, and is not truncated. CheckResponse must not be
	// nil.
	//
	// After ErrLame or ErrUnsigned, other servers are preferred for the name for a while, and for the zone after two
	// names in a row. After ErrFailed, other servers are preferred for the zone after four names in a row. Other
	// errors have no later effect.
	CheckResponse func(m *dns.Msg, server netip.AddrPort) error

	// Avoid are servers that have sent bogus answers to the question. They are queried last, also after servers that
	// FindServers returns.
	Avoid []netip.AddrPort

	// IsHedge reports whether only hedges wait for the task. Then each query needs a token of the hedge budget, and
	// without a token the task ends with ErrNoHedgeBudget. Nil: always false.
	IsHedge func() bool

	// SpendQuery is called before each query and counts it. hedge means that the hedge budget pays. After an error,
	// the task sends nothing more and ends with that error, unless an answer comes in time. An error for a hedge
	// only prevents the hedge. Nil: no limit.
	SpendQuery func(hedge bool) error
}

// SearchScope selects the names of servers that FindServers looks up. Each value includes the values before it.
type SearchScope int

const (
	// GluelessNames are the names outside the zone without a known address. A hedge looks them up because an answer
	// is late.
	GluelessNames SearchScope = 1 + iota
	// OutOfDomainNames are all names outside the zone. To look up a name within the zone, the servers of the zone
	// would be queried, which are unresponsive.
	OutOfDomainNames
	// AllNames are all names, including the names in the NS records that the zone itself sends.
	AllNames
)

// ErrLame rejects a response of a server that does not serve the zone. See Task.CheckResponse.
var ErrLame = errors.New("recursor: server does not serve the zone")

// ErrFailed rejects a response of a server that cannot answer the question. See Task.CheckResponse.
var ErrFailed = errors.New("recursor: server cannot answer")

// ErrUnsigned rejects a response of a signed zone without valid signatures. See Task.CheckResponse.
var ErrUnsigned = errors.New("recursor: server has no valid signatures")

// ErrNoHedgeBudget ends a task that only hedges wait for, because the hedge budget is empty.
var ErrNoHedgeBudget = errors.New("recursor: hedge budget is empty")

// ErrNoServers is the error of a task whose servers have all failed.
var ErrNoServers = errors.New("recursor: no server answers")

// A LocalError means that no query could leave this machine, for example because it has no network or no free file
// descriptor. It wraps ErrNoServers and the cause. It does not concern the zone or its servers.
type LocalError struct{ err error }

func (e *LocalError) Error() string   { return "recursor: no query can be sent: " + e.err.Error() }
func (e *LocalError) Unwrap() []error { return []error{ErrNoServers, e.err} }
