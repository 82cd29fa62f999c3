package recursor

import (
	"context"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Trace observes a Resolver. Its functions may be nil. They are called concurrently and must not block. A panic in a
// function is recovered, and the first one is logged.
type Trace struct {
	// Attempt is called before a query is sent to a server.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when the query was answered or abandoned, with its duration. The error is nil if a usable
	// response has come. For a losing query, errors.Is(err, context.Canceled) holds; the Resolver may still learn
	// the round trip time from a late answer.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called at the end of each client's question.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo describes one query to one server.
type AttemptInfo struct {
	Name    string // as sent: a minimised name is the end of the full name
	Type    uint16
	Zone    string // zone whose server is queried
	Server  netip.AddrPort
	TCP     bool
	Attempt int  // 0 for the first query of this question to the servers of this zone
	Hedge   bool // sent because an answer was late; the hedge budget has paid
}

// AnswerInfo describes the answer to a client's question.
type AnswerInfo struct {
	Name    string
	Type    uint16
	Rcode   int
	Queries int   // queries sent to servers
	Proofs  int   // answers for its name and aliases that were synthesized from cached proofs, without a query (RFC 8198)
	Err     error // returned error, or cause of SERVFAIL: a *dnssec.Error for a bogus answer

	// Security is the security status of the answer.
	Security dnssec.Security
}
