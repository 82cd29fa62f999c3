package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestSetConfigChangesModeOfExistingKeys(t *testing.T) {
	c := Config{MaxKeys: 4, Share: 1, EstimatedRPS: 100, Burst: time.Second, MaxHedges: 1}
	e := New(c)
	k := e.Key(Name{Host: "h"})
	for range 20 {
		k.RecordCall(written, Result{Latency: time.Second, Answered: true})
	}
	for _, step := range []struct {
		shadow, audit bool
		reason        observe.Reason
		audits        int
	}{
		{false, false, None, 0}, {true, false, observe.DeniedShadow, 0}, {true, true, observe.DeniedShadow, 0}, {false, true, None, 1},
		{true, true, observe.DeniedShadow, 0}, {false, false, None, 0},
	} {
		c.Shadow, c.Audit = step.shadow, step.audit
		e.SetConfig(c, written)
		assert.Equal(t, step.reason, k.Admit(written, false, time.Time{}, HedgeRequest{}), "%+v", step)
		latency, _ := k.Quantile(0.5)
		assert.InEpsilon(t, time.Second, latency, 0.01, "observed latencies are kept")
		assert.Equal(t, step.shadow, k.RandomLatency() > 0, "%+v", step)
		assert.Equal(t, step.audits > 0, k.experiment.isAudited(), "%+v", step)
		if step.audits > 0 {
			assert.Equal(t, step.audits, e.Audits())
		}
	}
}
