package recursor

import (
	"context"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Trace observes a Resolver. Its functions may be nil. They are called concurrently and must not block. A panic is
// recovered, and the first is logged.
type Trace struct {
	// Attempt is called before a query is sent to a server.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when the query was answered or abandoned, with the time that it took. The error is nil if a usable
	// response came. For a losing query, errors.Is(err, context.Canceled) holds; the Resolver may still learn from its
	// answer.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called at the end of each client's question.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo describes a query to a server.
type AttemptInfo struct {
	Name    string // as sent; a minimised name may be only the end of the name looked up
	Type    uint16
	Zone    string // whose server is asked
	Server  netip.AddrPort
	TCP     bool
	Attempt int  // 0 is the first for this question to this zone's servers
	Hedge   bool // sent because an answer was late, and paid for by the budget
}

// AnswerInfo describes an answered question.
type AnswerInfo struct {
	Name    string
	Type    uint16
	Rcode   int
	Queries int   // sent to servers
	Proofs  int   // answers to it, or to its aliases, synthesized from cached proofs without a query (RFC 8198)
	Err     error // the returned error, or the cause of SERVFAIL; a *dnssec.Error for a bogus answer

	// Security is the security status of the answer.
	Security dnssec.Security
}
