package steering_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

const ms = time.Millisecond

// A journal keeps log records as text, without their time and protocol. It is safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// option returns an option with which a client logs to j.
func (j *journal) option() hedge.Option {
	return hedge.WithLogger(slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "protocol" {
			return slog.Attr{}
		}
		return a
	}})))
}

// take returns the records since the last take.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	text := strings.NewReplacer("level=", "", "msg=", "").Replace(j.text.String())
	return strings.FieldsFunc(text, func(c rune) bool { return c == '\n' })
}

// A service is a function that takes 10ms, and 100ms to 300ms in one of twenty attempts.
type service struct {
	attempts atomic.Int64
	mu       sync.Mutex
	random   *rand.Rand
}

// answer is one attempt.
func (s *service) answer(ctx context.Context) (int, error) {
	s.attempts.Add(1)
	s.mu.Lock()
	takes := 10 * ms
	if s.random.IntN(20) == 0 {
		takes = 100*ms + time.Duration(s.random.IntN(200))*ms
	}
	s.mu.Unlock()
	return 0, doubles.Sleep(ctx, takes)
}

// newService returns a service.
func newService() *service { return &service{random: rand.New(rand.NewPCG(1, 2))} }

// callFor makes 40 calls per second by h for the given time, and returns the number of hedges that it sent.
func (s *service) callFor(t *testing.T, h *hedge.Hedger, d time.Duration) (hedges int64) {
	before := h.Snapshot().Stats.HedgesSent
	var calls sync.WaitGroup
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(25 * ms) {
		calls.Go(func() {
			if _, err := hedge.Do(t.Context(), h, "shop", s.answer); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	return h.Snapshot().Stats.HedgesSent - before
}

// mode returns how a Hedger that has had calls uses hedging: on, shadow, audit or off.
func mode(s hedge.Snapshot) string {
	switch {
	case !s.Enabled:
		return "off"
	case s.Shadow:
		return "shadow"
	case len(s.Keys) > 0 && s.Keys[0].Audit != nil:
		return "audit"
	}
	return "on"
}

// replaceFile replaces the file at path by another one with the given content, as programs should.
func replaceFile(t testing.TB, path, content string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), fmt.Sprint("next", rand.Uint64()))
	require.NoError(t, os.WriteFile(next, []byte(content), 0o600))
	require.NoError(t, os.Rename(next, path))
}

// unsetVariables removes the environment variables that change hedging, until the end of the test.
func unsetVariables(t *testing.T) {
	for _, name := range []string{"HEDGE_DISABLED", "HEDGE_MODE", "HEDGE_BUDGET_PERCENT"} {
		t.Setenv(name, "")
	}
}
