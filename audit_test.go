package hedge_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// A crowd is a server that takes longer while it is sent hedges. It is safe for concurrent use.
type crowd struct {
	factor float64
	last   atomic.Int64 // when the last hedge came, in Unix nanoseconds
	mu     sync.Mutex
	rng    *rand.Rand
}

func newCrowd(factor float64) *crowd {
	return &crowd{factor: factor, rng: rand.New(rand.NewPCG(1, 2))}
}

func (c *crowd) answer(ctx context.Context) error {
	now := time.Now().UnixNano()
	if a, ok := hedge.AttemptFromContext(ctx); ok && a.Hedge() {
		c.last.Store(now)
	}
	c.mu.Lock()
	took := float64(usual) * (1 + c.rng.Float64())
	if c.rng.Float64() < 0.1 {
		took *= 10
	}
	c.mu.Unlock()
	if now-c.last.Load() < int64(5*time.Second) {
		took *= c.factor
	}
	return doubles.Sleep(ctx, time.Duration(took))
}

// callFor makes calls for a time, twenty per second.
func callFor(d time.Duration, call func()) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * ms) {
		go call()
	}
	synctest.Wait()
}

// An auditor hears of audits.
type auditor struct {
	hedge.NopObserver
	mu   sync.Mutex
	key  hedge.KeyInfo
	last hedge.Audit
	word string // of the last call
}

func (a *auditor) Audited(key hedge.KeyInfo, found hedge.Audit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.key, a.last = key, found
}

func (a *auditor) RequestDone(_ context.Context, _ hedge.KeyInfo, r hedge.RequestResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.word = r.Audit
}

// An auditedClient makes calls of a protocol to a crowd, and shows its Snapshot.
type auditedClient func(t *testing.T, c *crowd, opts ...hedge.Option) (call func(), snapshot func() hedge.Snapshot)

// audited are the clients by protocol.
var audited = map[string]auditedClient{
	"http": func(t *testing.T, c *crowd, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
		rt := new(doubles.RoundTripper)
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			if err := c.answer(req.Context()); err != nil {
				return nil, err
			}
			return rt.Response(req, http.StatusOK, ""), nil
		}
		tr := hedge.New(rt, opts...)
		return func() {
			if resp, err := get(t, tr, site); err == nil {
				_ = resp.Body.Close()
			}
		}, tr.Snapshot
	},
	"func": func(t *testing.T, c *crowd, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
		h := hedge.NewHedger(opts...)
		return func() {
			_, _ = hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) { return 0, c.answer(ctx) })
		}, h.Snapshot
	},
}

func TestAuditSwitchesHedgingOffWhereItHarms(t *testing.T) {
	doubles.NeedsManyGoroutines(t)
	for protocol, client := range audited {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				rec := new(auditor)
				call, snapshot := client(t, newCrowd(3), hedge.WithAudit(), hedge.WithObserver(rec), hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				callFor(20*time.Minute, call)
				key := snapshot().Keys[0]
				require.NotNil(t, key.Audit)
				assert.Equal(t, hedge.AuditOff, key.Audit.Verdict)
				assert.Greater(t, key.Audit.Confidence, 0.95)
				assert.Negative(t, key.Audit.Saved)
				assert.Positive(t, key.Audit.PlusMinus)
				assert.Zero(t, key.Saved, "is measured instead")
				assert.Positive(t, key.Denied[hedge.DeniedAudit])
				assert.Equal(t, *key.Audit, rec.last)
				assert.Equal(t, hedge.KeyInfo{Protocol: protocol, Host: key.Host}, rec.key)
				assert.Equal(t, "off", rec.word)
				assert.Contains(t, log.String(), "level=WARN msg=\"hedge: audit: hedging harms and is switched off\"")
				sent := snapshot().Stats.HedgesSent
				callFor(time.Minute, call)
				assert.Equal(t, sent, snapshot().Stats.HedgesSent)
			})
		})
	}
}

func TestAuditLeavesHedgingOnWhereItHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call, snapshot := audited["func"](t, newCrowd(1), hedge.WithAudit())
		callFor(15*time.Minute, call)
		audit := snapshot().Keys[0].Audit
		assert.Equal(t, hedge.AuditOn, audit.Verdict)
		assert.Positive(t, audit.Saved)
	})
}

func TestThereIsNoAuditUnlessAskedFor(t *testing.T) {
	for name, opts := range map[string][]hedge.Option{"default": nil, "shadow": {hedge.WithAudit(), hedge.WithShadow()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				call, snapshot := audited["func"](t, newCrowd(1), opts...)
				callFor(5*time.Minute, call)
				assert.Nil(t, snapshot().Keys[0].Audit)
				assert.Zero(t, snapshot().Keys[0].Denied[hedge.DeniedAudit])
			})
		})
	}
}

func TestEnvironmentAsksForAudits(t *testing.T) {
	t.Setenv("HEDGE_MODE", "audit")
	synctest.Test(t, func(t *testing.T) {
		call, snapshot := audited["func"](t, newCrowd(1))
		callFor(time.Second, call)
		assert.Equal(t, hedge.AuditTrying, snapshot().Keys[0].Audit.Verdict)
		assert.True(t, snapshot().Enabled)
	})
}

func TestAuditIgnoresTimesWhenHedgingIsDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crowd := newCrowd(3)
		h := hedge.NewHedger(hedge.WithAudit())
		call := func() {
			_, _ = hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) { return 0, crowd.answer(ctx) })
		}
		for range 20 {
			callFor(67*time.Second, call)
			h.SetEnabled(false)
			callFor(31*time.Second, call)
			h.SetEnabled(true)
		}
		assert.NotEqual(t, hedge.AuditOn, h.Snapshot().Keys[0].Audit.Verdict)
	})
}
