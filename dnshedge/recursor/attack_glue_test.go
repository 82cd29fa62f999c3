package recursor_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestResolverSendsVictimFewQueriesForFalseGlue has a zone with 20 server names in 20 zones, whose servers have glue
// with the address of a victim.
func TestResolverSendsVictimFewQueriesForFalseGlue(t *testing.T) {
	for _, glued := range []int{1, 5, 20} {
		bubble(t, attack, func(t *testing.T, w *testNetwork) {
			z := w.zone("attack.")
			for i := range 20 {
				z.put(record(fmt.Sprintf("sub.attack. NS a.d%d.attack.", i)))
				for j := range glued {
					z.put(record(fmt.Sprintf("d%d.attack. NS n%d.d%d.attack.", i, j, i)))
					z.put(record(fmt.Sprintf("n%d.d%d.attack. A 192.0.2.9", j, i)))
				}
			}
			assert.Equal(t, "SERVFAIL", formatResponse(w.ask(w.resolver(), "www.sub.attack. A")))
			t.Logf("%d with glue: %d queries to the victim", glued, w.countQueries("192.0.2.9"))
			assert.LessOrEqual(t, w.countQueries("192.0.2.9"), 24)
		})
	}
}
