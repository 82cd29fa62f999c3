package nameservers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// A Task is one question to the servers of one zone, with the functions that decide about responses and costs. The
// caller creates a Task for each call of Pool.QueryServers.
type Task struct {
	Name string // absolute and in lower case, as returned by dns.CanonicalName
	Type uint16
	DO   bool // the query has the DO bit, which requests signatures
	CD   bool // the query has the CD bit

	// RequireSignatures must be set if the zone is signed. A server that does not support EDNS then counts as lame,
	// because it cannot send signatures. The server is not queried without EDNS.
	RequireSignatures bool
	// PreferSignatures must be set if the zone is unsigned, but the answer may need signatures, because a trust anchor for
	// the name is below the zone. Each server is then queried with EDNS first, even if it has rejected EDNS before.
	PreferSignatures bool

	Zone      string // absolute, in lower case
	PrivateOK bool   // servers may have private addresses
	Minimised bool   // the name is minimised (RFC 9156), so that unresponsive servers cause no backoff of the zone

	// EndEarly shortens the Task if no response comes, because another Task is likelier to succeed. The Task sends no
	// query after earlyEndTime, and does not wait for overdue queries. CheckResponse may set it. The time then counts from
	// that response, and ends a search for further servers too.
	EndEarly bool
	// AwaitUntil returns the time until which the Task waits for answers when all queries are overdue and no response has
	// come. Later calls may return a later time.
	//
	// If the result is zero or the function is nil, each query waits for its answer until its loserDeadline.
	AwaitUntil func() time.Time

	// Servers are the addresses of the zone's servers that are known at the start, in any order.
	//
	// FindServers returns further addresses. It blocks until it has found some. It returns nil if there are no more
	// servers within the scope e, or an error with which the Task may end. If FindServers is nil, there are no further
	// servers.
	//
	// FindServers runs on a goroutine of its own, one call at a time, and concurrently with the other functions of the
	// Task. All calls get the same context, which ends with the Task, or some time after it if lookups are still running.
	// needed is closed when the Task has no other server to query. Until then, the search is a hedge.
	//
	// HasRunningLookups reports whether lookups that FindServers has started are running after its return. It is not called
	// during a call of FindServers. If it is nil, there are none.
	Servers           []netip.AddrPort
	FindServers       func(ctx context.Context, e SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error)
	HasRunningLookups func() bool

	// CheckResponse returns nil to accept a response, or an error to reject it. After an error the next server is queried
	// at once. The response has the ID and the question of the query, and is not truncated. CheckResponse must not be nil.
	//
	// After ErrLame or ErrUnsigned, other servers are preferred for the same name for a while. After two names in a row,
	// they are preferred for the whole zone. After ErrFailed, other servers are preferred for the zone after four names in
	// a row. Other errors have no lasting effect.
	CheckResponse func(m *dns.Msg, server netip.AddrPort) error

	// Avoid are servers that have sent bogus answers to the question. They are queried last, even after the servers that
	// FindServers returns.
	Avoid []netip.AddrPort

	// IsHedge reports whether only hedges wait for the Task. Each query then costs a token of the hedge budget. Without a
	// token, the Task ends with ErrNoHedgeBudget. If IsHedge is nil, the Task is no hedge.
	IsHedge func() bool

	// SpendQuery is called before each query, and counts the query against the limits of the client's question. hedge is
	// true if the hedge budget has paid for the query.
	//
	// If it returns an error, the Task sends nothing more. The Task ends with that error, unless an answer still arrives.
	// If the query is a hedge, the error only prevents the hedge. If SpendQuery is nil, there is no limit.
	SpendQuery func(hedge bool) error
}

// A SearchScope limits the server names that Task.FindServers looks up to find addresses of further servers. Each value
// also allows the names of the values before it.
type SearchScope int

const (
	// GluelessNames are the names outside of the zone without a known address. A hedge may look them up, when an answer is
	// late.
	GluelessNames SearchScope = 1 + iota
	// OutOfDomainNames are all names outside of the zone. Names within the zone are excluded, because their lookup would
	// query the zone's servers, which are unresponsive.
	OutOfDomainNames
	// AllNames are all names, including names in the NS records from the zone itself.
	AllNames
)

// ErrLame is the result of Task.CheckResponse for a response from a server that does not serve the zone.
var ErrLame = errors.New("recursor: server does not serve the zone")

// ErrFailed is the result of Task.CheckResponse for a response from a server that cannot answer the question.
var ErrFailed = errors.New("recursor: server cannot answer")

// ErrUnsigned is the result of Task.CheckResponse for a response of a signed zone without valid signatures.
var ErrUnsigned = errors.New("recursor: server has no valid signatures")

// ErrNoHedgeBudget is the error of a Task for which only hedges wait, if the hedge budget is empty.
var ErrNoHedgeBudget = errors.New("recursor: hedge budget is empty")

// ErrNoServers is the error of a Task if no server has sent an acceptable response.
var ErrNoServers = errors.New("recursor: no server answers")

// ErrEndedEarly is the error of a Task that has ended because of Task.EndEarly, after a rejected response, before it has
// queried all servers. It wraps ErrNoServers.
var ErrEndedEarly = fmt.Errorf("%w in time", ErrNoServers)

// A LocalError is the error of a Task if no query could leave this machine, for example without a network or a free
// file descriptor. It says nothing about the zone or its servers. It wraps ErrNoServers and the cause.
type LocalError struct{ err error }

func (e *LocalError) Error() string   { return "recursor: no query can be sent: " + e.err.Error() }
func (e *LocalError) Unwrap() []error { return []error{ErrNoServers, e.err} }
