package recursor

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

const (
	maxLookupDepth     = 4   // server name lookups that may depend on each other
	maxUnresolvedNames = 5   // server names without an address after which a question looks up no more names
	maxNSEC3Iterations = 500 // highest Limits.NSEC3Iterations

	maxParallelLookups = 2 // server name lookups in parallel for one zone
)

// withDefaults returns the limits with defaults in place of zero values.
func (l Limits) withDefaults() Limits {
	return Limits{
		Queries: cmp.Or(l.Queries, 64), ChainQueries: cmp.Or(l.ChainQueries, 32),
		ServerNames: cmp.Or(l.ServerNames, 16), ServerNamesPerZone: cmp.Or(l.ServerNamesPerZone, 5),
		Referrals: cmp.Or(l.Referrals, 30), Aliases: cmp.Or(l.Aliases, 11),
		InFlight: cmp.Or(l.InFlight, 64), ZoneInFlight: cmp.Or(l.ZoneInFlight, 256),
		Verifications: cmp.Or(l.Verifications, 128), NSEC3Iterations: cmp.Or(l.NSEC3Iterations, 50),
	}
}

// checkValues returns an error that names an invalid limit, or nil.
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

// A limitError ends a question that would exceed a limit.
type limitError struct {
	field string // of Limits
	value int
}

func (e *limitError) Error() string {
	return fmt.Sprintf("recursor: limit %s of %d reached", e.field, e.value)
}

// A questionBudget counts the cost of a client's question, with all lookups for it, and enforces Limits. It is safe
// for concurrent use.
type questionBudget struct {
	limits          *Limits
	validation      validate.Validation // limits of cryptographic work
	queries         atomic.Int32        // queries sent, without hedges
	hedges          atomic.Int32
	serverNames     atomic.Int32 // server names looked up
	unresolvedNames atomic.Int32 // server names without an address
	synthesized     atomic.Int32 // synthesized answers
}

// Validation implements chain.WorkBudget.
func (b *questionBudget) Validation() *validate.Validation { return &b.validation }

// spendQuery counts a query. It returns a limitError above Limits.Queries. For a hedge, the error is always nil,
// because the hedge budget pays.
func (b *questionBudget) spendQuery(hedge bool) error {
	if hedge {
		b.hedges.Add(1)
		return nil
	}
	return countWithinLimit(&b.queries, "Queries", b.limits.Queries)
}

// countWithinLimit increments a count. If the count would exceed the limit, it does not, and returns a limitError
// with the field of Limits.
func countWithinLimit(count *atomic.Int32, field string, limit int) error {
	if int(count.Add(1)) > limit {
		count.Add(-1)
		return &limitError{field, limit}
	}
	return nil
}

// nameserversHedge converts h for package nameservers, which has no NoBudget.
func (h Hedge) nameserversHedge() nameservers.Hedge {
	c := nameservers.Hedge(h)
	if h.BudgetPercent == NoBudget {
		c.Off, c.BudgetPercent = true, 0
	}
	return c
}

// checkValues returns an error that names an invalid field, or nil.
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
