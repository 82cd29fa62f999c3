package hedgeprom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/observe"
)

// Sources of numbers: the first is compared by its pointer, the second cannot be compared.
type (
	storeNumbers   struct{ ranges int64 }
	storeFunc      func() observe.StoreStats
	dnsNumbers     struct{ queries int64 }
	limiterNumbers struct{ worked int64 }
)

func (s *storeNumbers) Stats() observe.StoreStats { return observe.StoreStats{Ranges: s.ranges} }
func (f storeFunc) Stats() observe.StoreStats     { return f() }
func (d *dnsNumbers) Stats() observe.DNSStats     { return observe.DNSStats{Queries: d.queries} }
func (l *limiterNumbers) Snapshot() observe.LimiterSnapshot {
	return observe.LimiterSnapshot{Name: "l", Worked: l.worked}
}

// TestCollectorCountsSourceAddedTwiceOnce adds each source twice, and two stores with the same name, whose values are
// summed.
func TestCollectorCountsSourceAddedTwiceOnce(t *testing.T) {
	c := hedgeprom.New()
	store, other, dns, limiter := &storeNumbers{7}, &storeNumbers{7}, &dnsNumbers{7}, &limiterNumbers{7}
	f := storeFunc(func() observe.StoreStats { return observe.StoreStats{Ranges: 1} })
	for range 2 {
		c.AddStore("one", store)
		c.AddDNS(dns)
		c.AddLimiter(limiter)
	}
	for _, s := range []hedgeprom.RangeStore{store, other, store, f} {
		c.AddStore("two", s)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	got := make(map[string]float64)
	for _, family := range families {
		switch name := family.GetName(); name {
		case "hedge_store_ranges_total":
			for _, m := range family.GetMetric() {
				got[name+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		case "hedge_dns_questions_total", "hedge_limiter_requests_total":
			for _, m := range family.GetMetric() {
				got[name] += m.GetCounter().GetValue()
			}
		}
	}
	assert.Equal(t, map[string]float64{
		"hedge_store_ranges_total one": 7, "hedge_store_ranges_total two": 15, "hedge_dns_questions_total": 7, "hedge_limiter_requests_total": 7,
	}, got)
}
