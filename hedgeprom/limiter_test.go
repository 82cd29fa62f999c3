package hedgeprom_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/observe"
)

var _ hedgeprom.Limiter = (*hedge.Limiter)(nil)

// limiter is a Limiter that has this Snapshot.
type limiter observe.LimiterSnapshot

func (l limiter) Snapshot() observe.LimiterSnapshot { return observe.LimiterSnapshot(l) }

func TestCollectorMergesLimitersOfSameName(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithConstLabels(prometheus.Labels{"zone": "a"}))
	assert.Zero(t, testutil.CollectAndCount(c), "there is no Limiter yet")
	c.AddLimiter(limiter{Name: "shop", Limit: 64, Working: 60, Waiting: 7, Worked: 1000, Left: 30, Refused: 4})
	c.AddLimiter(limiter{Name: "shop", Limit: 6, Working: 1, Worked: 10})
	c.AddLimiter(limiter{Name: "a\xff", Limit: 1})
	assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP hedge_limiter_limit Requests that may be worked on at a time.
# TYPE hedge_limiter_limit gauge
hedge_limiter_limit{limiter="a�",zone="a"} 1
hedge_limiter_limit{limiter="shop",zone="a"} 70
# HELP hedge_limiter_requests_total Requests that came to the Limiter, by outcome.
# TYPE hedge_limiter_requests_total counter
hedge_limiter_requests_total{limiter="a�",outcome="left",zone="a"} 0
hedge_limiter_requests_total{limiter="a�",outcome="refused",zone="a"} 0
hedge_limiter_requests_total{limiter="a�",outcome="worked",zone="a"} 0
hedge_limiter_requests_total{limiter="shop",outcome="left",zone="a"} 30
hedge_limiter_requests_total{limiter="shop",outcome="refused",zone="a"} 4
hedge_limiter_requests_total{limiter="shop",outcome="worked",zone="a"} 1010
# HELP hedge_limiter_waiting Requests that wait in the queue.
# TYPE hedge_limiter_waiting gauge
hedge_limiter_waiting{limiter="a�",zone="a"} 0
hedge_limiter_waiting{limiter="shop",zone="a"} 7
# HELP hedge_limiter_working Requests that are worked on.
# TYPE hedge_limiter_working gauge
hedge_limiter_working{limiter="a�",zone="a"} 0
hedge_limiter_working{limiter="shop",zone="a"} 61
`)))
	problems, err := testutil.CollectAndLint(c)
	assert.NoError(t, err)
	assert.Empty(t, problems)
}

func TestAddLimiterPanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "hedgeprom: AddLimiter: Limiter is nil", func() { hedgeprom.New().AddLimiter(nil) })
	assert.PanicsWithValue(t, "hedgeprom: AddLimiter: Limiter is nil", func() { hedgeprom.New().AddLimiter((*hedge.Limiter)(nil)) })
}
