package recursor

import (
	"context"
	"net/netip"
	"time"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// Trace observes a Resolver. Its functions may be nil. They are called concurrently and must not block. If a function
// panics, the panic is recovered, and the first panic is logged.
type Trace struct {
	// Attempt is called before a query is sent to a server.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when the query was answered, has failed or was abandoned, with its duration. The error is nil if the
	// response is usable.
	//
	// If another query has won, errors.Is(err, context.Canceled) is true. The Resolver may still learn the round trip time
	// from a late answer.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called at the end of each client's question.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo describes one query to one server, for Trace.
type AttemptInfo struct {
	Name    string // name as sent, which may be minimised to the last labels of the full name
	Type    uint16
	Zone    string // zone whose server is queried
	Server  netip.AddrPort
	TCP     bool
	Attempt int  // number of the query for this question to the servers of this zone, beginning with 0
	Hedge   bool // the query was sent because an answer was late, and the hedge budget has paid
}

// AnswerInfo describes the answer to a client's question, for Trace.
type AnswerInfo struct {
	Name    string
	Type    uint16
	Rcode   int
	Queries int   // number of queries sent to servers, including hedges
	Proofs  int   // number of answers, for the name and its aliases, that were synthesized from cached proofs (RFC 8198)
	Err     error // returned error, or cause of SERVFAIL; a *dnssec.Error for a bogus answer

	// Security is the security status of the answer.
	Security dnssec.Security
}
