package recursor

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

const (
	maxLookupDepth     = 4   // maximum number of server name lookups that depend on each other
	maxUnresolvedNames = 5   // server names without an address after which a question looks up no more server names
	maxNSEC3Iterations = 500 // maximum of Limits.NSEC3Iterations

	maxParallelLookups = 2 // maximum number of parallel server name lookups for one zone
)

// withDefaults returns a copy of the limits in which each zero value is replaced by its default.
func (l Limits) withDefaults() Limits {
	return Limits{
		Queries: cmp.Or(l.Queries, 64), ChainQueries: cmp.Or(l.ChainQueries, 32),
		ServerNames: cmp.Or(l.ServerNames, 16), ServerNamesPerZone: cmp.Or(l.ServerNamesPerZone, 5),
		Referrals: cmp.Or(l.Referrals, 30), Aliases: cmp.Or(l.Aliases, 11),
		InFlight: cmp.Or(l.InFlight, 64), ZoneInFlight: cmp.Or(l.ZoneInFlight, 256),
		Verifications: cmp.Or(l.Verifications, 128), NSEC3Iterations: cmp.Or(l.NSEC3Iterations, 50),
	}
}

// checkValues returns an error that names an invalid limit, or nil if all limits are valid.
func (l Limits) checkValues() error {
	for _, f := range [...]struct {
		name  string
		value int
	}{
		{"Queries", l.Queries}, {"ChainQueries", l.ChainQueries}, {"ServerNames", l.ServerNames}, {"ServerNamesPerZone", l.ServerNamesPerZone},
		{"Referrals", l.Referrals}, {"Aliases", l.Aliases}, {"InFlight", l.InFlight}, {"ZoneInFlight", l.ZoneInFlight},
		{"Verifications", l.Verifications}, {"NSEC3Iterations", l.NSEC3Iterations},
	} {
		if f.value < 0 {
			return fmt.Errorf("recursor: Resolver.Limits.%s is %d; want 0 or more", f.name, f.value)
		}
	}
	if l.NSEC3Iterations > maxNSEC3Iterations {
		return fmt.Errorf("recursor: Resolver.Limits.NSEC3Iterations is %d; want %d at most", l.NSEC3Iterations, maxNSEC3Iterations)
	}
	return nil
}

// A limitError is the error of a question that would exceed one of its Limits.
type limitError struct {
	field string // name of the field in Limits
	value int
}

func (e *limitError) Error() string {
	return fmt.Sprintf("recursor: limit %s of %d reached", e.field, e.value)
}

// errTimeout is the context cause of a question whose time limit (see chain.WithQuestionDeadline) has passed.
var errTimeout = errors.New("recursor: no answer in time")

// A questionSpecificError is the error of a question that has reached its own limits before it reached the servers of a
// zone. It must not be cached, because other questions may reach them.
type questionSpecificError struct{ error }

func (e *questionSpecificError) Unwrap() error { return e.error }

// isQuestionSpecific reports whether err wraps a questionSpecificError: the question has reached its own limits, and
// the zone may be all right.
func isQuestionSpecific(err error) bool { return errors.As(err, new(*questionSpecificError)) }

// isQuestionLimit reports whether err comes from a limit on the cost of one question (see Limits), and not from the
// zone or its servers. Another question may then get an answer.
func isQuestionLimit(err error) bool {
	return errors.As(err, new(*limitError)) || isQuestionSpecific(err)
}

// isLocalFailure reports whether err is or wraps a nameservers.LocalError: no query could leave this machine. This
// error must not be cached, because its cause is not the zone.
func isLocalFailure(err error) bool { return errors.As(err, new(*nameservers.LocalError)) }

// A questionBudget counts the cost of a client's question, including all lookups for it, and enforces the Limits. It is
// safe for concurrent use, because the lookups run in parallel.
type questionBudget struct {
	limits               *Limits
	validation           validate.Validation // limits of the cryptographic work
	queries              atomic.Int32        // queries sent so far, without hedges
	hedges               atomic.Int32        // hedges sent so far
	serverNames          atomic.Int32        // server names looked up so far
	unresolvedNames      atomic.Int32        // server names without glue that were found to have no address
	unresolvedGluedNames atomic.Int32        // server names with glue that were found to have no address
	synthesized          atomic.Int32        // answers synthesized from cached proofs
}

// Validation returns the Validation that limits the cryptographic work for this question. It implements
// chain.ValidationBudget.
func (b *questionBudget) Validation() *validate.Validation { return &b.validation }

// spendQuery counts a query before it is sent. The error is a limitError if the question has reached Limits.Queries or
// Limits.ChainQueries. The query must then not be sent.
//
// A hedge, which the hedge budget limits instead, is only counted, and the error is nil. chainQueries is the number of
// queries for the present name in a chain of aliases. It is nil for priming.
func (b *questionBudget) spendQuery(hedge bool, chainQueries *atomic.Int32) error {
	if hedge {
		b.hedges.Add(1)
		return nil
	}
	if chainQueries != nil {
		if err := countWithinLimit(chainQueries, "ChainQueries", b.limits.ChainQueries); err != nil {
			return err
		}
	}
	return countWithinLimit(&b.queries, "Queries", b.limits.Queries)
}

// countWithinLimit increments a count. If the count has reached its limit already, it returns a limitError and does not
// increment the count. field is the name of the limit in Limits, for the error.
func countWithinLimit(count *atomic.Int32, field string, limit int) error {
	if int(count.Add(1)) > limit {
		count.Add(-1)
		return &limitError{field, limit}
	}
	return nil
}

// toNameserversHedge converts h to the configuration of package nameservers. It sets Off if BudgetPercent is NoBudget.
func (h Hedge) toNameserversHedge() nameservers.Hedge {
	c := nameservers.Hedge(h)
	if h.BudgetPercent == NoBudget {
		c.Off, c.BudgetPercent = true, 0
	}
	return c
}

// checkValues returns an error that names an invalid field, or nil if all fields are valid.
func (h Hedge) checkValues() error {
	switch {
	case !(h.Percentile >= 0 && h.Percentile < 1): // rejects NaN
		return fmt.Errorf("recursor: Resolver.Hedge.Percentile is %v; want 0 or more and less than 1", h.Percentile)
	case h.BudgetPercent != NoBudget && !(h.BudgetPercent >= 0 && h.BudgetPercent <= 100):
		return fmt.Errorf("recursor: Resolver.Hedge.BudgetPercent is %v; want 0 to 100, or NoBudget", h.BudgetPercent)
	case !(h.MaxPerSecond >= 0):
		return fmt.Errorf("recursor: Resolver.Hedge.MaxPerSecond is %v; want 0 or more", h.MaxPerSecond)
	}
	return nil
}
