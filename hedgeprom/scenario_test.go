package hedgeprom_test

import (
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/metricstest"
)

// TestCollectorAgreesWithHedgeotel has a counterpart in module hedgeotel, which expects the same values.
func TestCollectorAgreesWithHedgeotel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := hedgeprom.New()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		metricstest.Play(t, c, func(want metricstest.Values) {
			families, err := registry.Gather()
			require.NoError(t, err)
			got := make(metricstest.Values)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					label := func(name string) string {
						for _, l := range m.GetLabel() {
							if l.GetName() == name {
								return l.GetValue()
							}
						}
						return ""
					}
					got.Add(f.GetName(), label, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
				}
			}
			assert.Equal(t, want, got)
		})
	})
}
