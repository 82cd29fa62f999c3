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

// TestSetConfigAllowsNoHedgesOfCallsInFlight has calls that begin while the mode denies their hedges, and that mode then ends.
func TestSetConfigAllowsNoHedgesOfCallsInFlight(t *testing.T) {
	c := Config{MaxKeys: 4, Share: 1, EstimatedRPS: 100, Burst: time.Second, MaxHedges: 1}
	shadow, audit := c, c
	shadow.Shadow, audit.Audit = true, true
	for name, test := range map[string]struct {
		before, after Config
		want          observe.Reason
	}{
		"shadow to on":    {shadow, c, observe.DeniedShadow},
		"shadow to audit": {shadow, audit, observe.DeniedShadow},
		"audit to on":     {audit, c, observe.DeniedAudit},
		"audit to shadow": {audit, shadow, observe.DeniedAudit},
		"on to shadow":    {c, shadow, observe.DeniedShadow},
		"on to on":        {c, c, None},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(test.before)
			k := e.Key(Name{Host: "h"})
			for now := time.Now(); test.before.Audit && k.experiment.deny(admission{}) == None; now = now.Add(time.Second) {
				k.Begin(now) // until a control slot begins
			}
			begin := func() *Call {
				call := new(Call)
				call.Begin(t.Context(), k, time.Hour)
				return call
			}
			inFlight := begin()
			e.SetConfig(test.after, time.Now())
			assert.Equal(t, test.want == None, inFlight.Admit(Immediate+1))
			assert.Equal(t, test.want, inFlight.Denied)
			assert.Equal(t, !test.after.Shadow, begin().Admit(Immediate+1), "a call that begins afterwards")
		})
	}
}
