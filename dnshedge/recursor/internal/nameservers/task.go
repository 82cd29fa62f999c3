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
	DO   bool // signatures are requested
	CD   bool

	// RequireSignatures rejects answers without signatures. A server that does not understand EDNS cannot send signatures: it counts
	// as lame and is not asked without EDNS.
	RequireSignatures bool

	Zone      string // absolute, in lower case
	PrivateOK bool   // servers may have private addresses
	Minimised bool   // a longer question follows if none answers; silence causes no backoff of the zone

	// EndEarly ends the task early if no response comes or all servers were asked often enough: another question is likelier
	// to succeed. Judge may set it.
	EndEarly bool
	// AwaitUntil returns until when answers are awaited after all queries were sent without a response. It may become
	// later. Nil, and the zero time: until the queries end as losers.
	AwaitUntil func() time.Time

	// Servers are the addresses known at first, in any order. FindMore is called when none is known or all have failed. It
	// blocks until it has further addresses. It returns none if there are no more with that effort, or an error that ends
	// the task.
	//
	// FindMore runs on its own goroutine, once at a time and concurrently with the functions below. All calls get the same
	// context, which ends some time after the task. needed is closed when the task cannot do without the servers; before,
	// the search is a hedge. Nil: there are no more.
	Servers     []netip.AddrPort
	FindServers func(ctx context.Context, e SearchScope, needed <-chan struct{}) ([]netip.AddrPort, error)

	// CheckResponse evaluates a response, which has the ID and the question of the query and is not truncated. Nil accepts it.
	// After an error the next server is asked at once.
	//
	// ErrLame means that the server does not serve the zone. Other servers are preferred for the name for a while, and for
	// the zone after two names in a row. ErrFailed means that the server cannot answer; other servers are preferred for
	// the zone after four names.
	CheckResponse func(m *dns.Msg, server netip.AddrPort) error

	// Avoid are servers whose answers to the question were bogus. They are asked last, also after servers that FindMore
	// finds.
	Avoid []netip.AddrPort

	// IsHedge reports whether the task still serves only a hedge. Then the hedge budget pays for each query, or the task
	// ends with ErrNoHedgeBudget. Nil: it does not.
	IsHedge func() bool

	// SpendQuery is called before each query. After an error, the task sends nothing more and ends with that error, unless an
	// answer comes in time. An error for a hedge only prevents the hedge. Nil: no limit.
	SpendQuery func(hedge bool) error
}

// SearchScope says where FindMore looks for servers. Each value includes those before.
type SearchScope int

const (
	// GluelessNames looks up server names without a known address, because an answer is late.
	GluelessNames SearchScope = 1 + iota
	// OutOfDomainNames looks up all names outside of the zone. If all servers are silent, names within the zone would be asked of
	// the same servers.
	OutOfDomainNames
	// AllNames looks up all names.
	AllNames
)

// ErrLame rejects a response of a server that does not serve the zone, see Task.Judge.
var ErrLame = errors.New("recursor: server does not serve the zone")

// ErrFailed rejects a response of a server that cannot answer the question, see Task.Judge.
var ErrFailed = errors.New("recursor: server cannot answer")

// ErrUnsigned rejects a response without valid signatures in a signed zone. Other servers are preferred for the zone for a
// while.
var ErrUnsigned = errors.New("recursor: server has no signatures that fit")

// ErrNoHedgeBudget is the error of a task that serves a hedge when the hedge budget is empty.
var ErrNoHedgeBudget = errors.New("recursor: no hedge is left to pay for more queries")

// ErrNoServers is the error of a task whose servers have all failed.
var ErrNoServers = errors.New("recursor: no server answers")

// A LocalError is ErrNoServers if no query could leave this machine, as without a network or descriptors. It says nothing
// of the question.
type LocalError struct{ err error }

func (e *LocalError) Error() string   { return "recursor: no server can be asked: " + e.err.Error() }
func (e *LocalError) Unwrap() []error { return []error{ErrNoServers, e.err} }
