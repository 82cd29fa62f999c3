package func_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func auditedHedger(t *testing.T, s *fixture.LoadedServer, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
	h := hedge.NewHedger(hedge.WithOptions(opts...))
	return func() {
		_, _ = hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) { return 0, s.Answer(ctx) })
	}, h.Snapshot
}

func TestAuditDisablesHedgingThatIncreasesLatency(t *testing.T) {
	fixture.CheckAuditOfHarm(t, "func", auditedHedger)
}

func TestAuditLeavesHedgingOnWhereItHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call, snapshot := auditedHedger(t, fixture.NewLoadedServer(1), hedge.WithAudit())
		fixture.CallFor(15*time.Minute, call)
		audit := snapshot().Keys[0].Audit
		assert.Equal(t, hedge.AuditOn, audit.Verdict)
		assert.Positive(t, audit.Saved)
	})
}

func TestHedgerHasNoAuditByDefault(t *testing.T) {
	for name, opts := range map[string][]hedge.Option{"default": nil, "shadow": {hedge.WithShadow()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				call, snapshot := auditedHedger(t, fixture.NewLoadedServer(1), opts...)
				fixture.CallFor(5*time.Minute, call)
				assert.Nil(t, snapshot().Keys[0].Audit)
				assert.Zero(t, snapshot().Keys[0].Denied[hedge.DeniedAudit])
			})
		})
	}
}

func TestEnvironmentEnablesAudit(t *testing.T) {
	t.Setenv("HEDGE_MODE", "audit")
	synctest.Test(t, func(t *testing.T) {
		call, snapshot := auditedHedger(t, fixture.NewLoadedServer(1))
		fixture.CallFor(time.Second, call)
		assert.Equal(t, hedge.AuditTrying, snapshot().Keys[0].Audit.Verdict)
		assert.True(t, snapshot().Enabled)
	})
}

func TestAuditIgnoresTimesWhenHedgingIsDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fixture.NewLoadedServer(3)
		h := hedge.NewHedger(hedge.WithAudit())
		call := func() {
			_, _ = hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) { return 0, server.Answer(ctx) })
		}
		for range 20 {
			fixture.CallFor(67*time.Second, call)
			h.SetEnabled(false)
			fixture.CallFor(31*time.Second, call)
			h.SetEnabled(true)
		}
		assert.NotEqual(t, hedge.AuditOn, h.Snapshot().Keys[0].Audit.Verdict)
	})
}
