package hedge_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestAPlaceComesBackHoweverMuchTheBudgetAllows: hedges spend it as it is earned, and a try that finds it empty is none.
func TestAPlaceComesBackHoweverMuchTheBudgetAllows(t *testing.T) {
	for _, percent := range []float64{1, 2, 3, 5, 10} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
				down := false
				rt.Answer = inPlaces(rt, func(r *http.Request, n int) (*http.Response, error) {
					if down {
						return fails(r, n)
					}
					return quick(rt)(r, n)
				}, after(rt, 80*ms))
				tr := hedge.New(rt, toFar(hedge.Place{}), hedge.WithBudgetPercent(percent), hedge.WithMaxHedges(1))
				call := func(calls int) {
					for range calls {
						resp, err := tr.RoundTrip(request(t, hedge.WithDelay(t.Context(), 40*ms), "GET", site, nil))
						if err == nil {
							text(t, resp)
						}
					}
				}
				call(100)
				down = true
				call(1000)
				require.True(t, firstPlace(tr).Out)
				down = false
				call(2000 + int(10_000/percent))
				assert.False(t, firstPlace(tr).Out)
			})
		})
	}
}

// firstPlace returns what is known of the first of the places.
func firstPlace(tr *hedge.Transport) (p hedge.PlaceSnapshot) {
	for _, k := range tr.Snapshot().Keys {
		if len(k.Places) > 0 {
			p = k.Places[0]
		}
	}
	return p
}
