package recursor

import (
	"context"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Trace is told what a Resolver does. Its functions may be nil; they are called from several
// goroutines at once and must not block. A panic of one is recovered, and the first is logged.
type Trace struct {
	// Attempt is called before a query is sent to a server.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when the query has been answered or given up, with how long that took.
	// The error is nil if a response came that could be used. Of a query that lost,
	// errors.Is(err, context.Canceled) holds; the Resolver may still learn from its answer.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called for each question of a caller when it ends.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo is what a Trace is told of a query to a server.
type AttemptInfo struct {
	Name    string // as sent, which may be only the end of what is looked up
	Type    uint16
	Zone    string // whose server is asked
	Server  netip.AddrPort
	TCP     bool
	Attempt int  // 0 is the first for this question to this zone's servers
	Hedge   bool // it was sent because an answer was late, and paid for from the budget
}

// AnswerInfo is what a Trace is told of a question.
type AnswerInfo struct {
	Name    string
	Type    uint16
	Rcode   int
	Queries int   // sent to servers for it
	Proofs  int   // answers to it, or to its aliases, that were made of proofs of others: no server was asked (RFC 8198)
	Err     error // instead of a response, or why the response is SERVFAIL; of one that is bogus, a *dnssec.Error

	// Security is what signatures say of the answer.
	Security dnssec.Security
}
