// Package metricstest plays one scenario through any exporter of metrics, so that tests can compare exporters. It also has
// the helpers that tests of exporters share.
package metricstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/observe"
)

const ms = time.Millisecond

// Values holds the values of metrics that are not 0. A key consists of the name of the metric in Prometheus and the values of the
// labels host, endpoint, type and reason, as far as the metric has them. Other labels are summed. Histograms have their counts.
type Values map[string]float64

// Add adds the value of a series. The function label returns the value of a label of Prometheus, or "".
func (v Values) Add(metric string, label func(name string) string, value float64) {
	if value == 0 {
		return
	}
	for _, name := range [...]string{"host", "endpoint", "type", "reason"} {
		if text := label(name); text != "" {
			metric += " " + text
		}
	}
	v[metric] += value
}

// Promtool runs the tool of Prometheus that checks rules. It skips the test if the tool is not installed.
func Promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; it comes with Prometheus")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// StateOf returns the state of a client with the given keys, which exists for ever.
func StateOf(keys ...observe.KeyState) observe.ClientState {
	return func() ([]observe.KeyState, bool) { return keys, true }
}

// Play plays the scenario with the observer o, and passes the expected values to check. It must be called in a bubble of
// testing/synctest.
//
// Calls to near.test win, are won by a hedge, resume a stalled body, withdraw a hedge, are retries, and eject an endpoint. A DNS question is
// hedged at another upstream and retransmitted.
func Play(t *testing.T, o observe.Observer, check func(want Values)) {
	s := &server{object: bytes.Repeat([]byte("0123456789"), 20_000)}
	tr := hedge.New(doubles.RoundTripperFunc(s.roundTrip), hedge.WithObserver(o), hedge.WithResume(), hedge.WithMaxHedges(1),
		hedge.WithBudget(hedge.NewBudget(50, 10)), hedge.WithLogger(slog.New(slog.DiscardHandler)),
		hedge.WithEndpoints(hedge.Endpoint{URL: "http://near.test"}, hedge.Endpoint{URL: "http://far.test", Prepare: s.prepare}))
	ctx := t.Context()
	call := func(n int) {
		for range n {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://near.test/object", http.NoBody)
			require.NoError(t, err)
			if resp, err := tr.RoundTrip(req); err == nil {
				_, err := io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			time.Sleep(time.Second)
		}
	}
	call(60)
	s.slow = true
	call(1)
	s.failing = true // a hedge is withdrawn
	call(1)
	s.slow, s.failing, s.stalls = false, false, true
	call(1)
	s.stalls = false
	ctx = hedge.MarkRetry(ctx)
	call(2)
	ctx, s.down = t.Context(), true
	call(40) // each of the six that fail before the endpoint is ejected starts a hedge, which wins
	playDNS(t.Context(), o)

	state := tr.Snapshot()
	assert.EqualValues(t, 1, state.Stats.Resumes)
	assert.EqualValues(t, 3+6, state.Stats.HedgesSent)
	assert.EqualValues(t, 2, state.Stats.Retries)
	assert.EqualValues(t, 60+1+1+1+2+40, state.Stats.TotalRequests)
	far, near := state.Keys[0].Delays[0].Seconds(), state.Keys[1].Delays[0].Seconds()
	check(Values{
		"hedge_requests_total near.test": 71, "hedge_requests_total far.test": 34, "hedge_requests_total udp://a": 1,
		"hedge_request_seconds near.test": 71, "hedge_request_seconds far.test": 34, "hedge_request_seconds udp://a": 1,
		"hedge_attempts_total near.test original": 69, "hedge_attempts_total far.test original": 34, "hedge_attempts_total udp://a original": 1,
		"hedge_attempts_total near.test retry": 2, "hedge_attempts_total near.test hedge": 2 + 6, "hedge_attempts_total near.test resume": 1, "hedge_attempts_total udp://a hedge": 1,
		"hedge_wins_total near.test hedge": 1 + 6, "hedge_wins_total near.test resume": 1, "hedge_wins_total near.test original": 1, "hedge_wins_total udp://a hedge": 1,
		"hedge_saved_seconds near.test": 1 + 6, "hedge_saved_seconds udp://a": 1,
		"hedge_denied_total near.test warming": 10, "hedge_denied_total far.test warming": 10, "hedge_denied_total near.test not-ready": 1,
		"hedge_delay_seconds near.test": near, "hedge_delay_seconds far.test": far,
		"hedge_budget_ratio near.test": 0.5, "hedge_budget_ratio far.test": 0.5, "hedge_budget_tokens near.test": 10, "hedge_budget_tokens far.test": 10,
		"hedge_endpoint_attempts_total near.test http://near.test original": 71, "hedge_endpoint_attempts_total near.test http://far.test original": 34,
		"hedge_endpoint_attempts_total near.test http://far.test hedge": 3 + 6,
		"hedge_endpoint_bad_total near.test http://near.test":           7, "hedge_endpoint_bad_total near.test http://far.test": 1,
		"hedge_endpoint_ejected near.test http://near.test": 1,
	})
}

// server answers requests to both endpoints.
type server struct {
	object                      []byte
	slow, failing, stalls, down bool
}

// prepare fails while s.failing is set.
func (s *server) prepare(*http.Request) error {
	if s.failing {
		return errors.New("no token")
	}
	return nil
}

// roundTrip answers with the object, or with its rest.
func (s *server) roundTrip(r *http.Request) (*http.Response, error) {
	wait := 10 * ms
	switch {
	case r.URL.Host == "far.test":
		wait = 12 * ms
	case s.slow:
		wait = time.Second
	}
	if err := doubles.Sleep(r.Context(), wait); err != nil {
		return nil, err
	}
	if s.down && r.URL.Host == "near.test" {
		return nil, errors.New("connection refused")
	}
	resp := &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Etag": {`"1"`}, "Accept-Ranges": {"bytes"}}, Request: r}
	from := 0
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); n == 1 {
		resp.StatusCode = http.StatusPartialContent
		resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(s.object)-1, len(s.object)))
	}
	resp.ContentLength = int64(len(s.object) - from)
	resp.Body = io.NopCloser(bytes.NewReader(s.object[from:]))
	if s.stalls && from == 0 {
		resp.Body = stallingBody{bytes.NewReader(s.object[:100_000]), r.Context()}
	}
	return resp, nil
}

// A stallingBody stalls after its content until ctx ends.
type stallingBody struct {
	io.Reader
	ctx context.Context
}

func (b stallingBody) Read(p []byte) (int, error) {
	if n, _ := b.Reader.Read(p); n > 0 {
		return n, nil
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

func (stallingBody) Close() error { return nil }

// playDNS reports the events of a DNS question: upstream a is asked twice, because a query was lost, and a hedge to b wins.
func playDNS(ctx context.Context, o observe.Observer) {
	a, b := observe.KeyInfo{Protocol: "dns", Host: "udp://a"}, observe.KeyInfo{Protocol: "dns", Host: "udp://b"}
	for range 2 {
		o.AttemptStart(ctx, a, observe.AttemptInfo{})
	}
	o.AttemptStart(ctx, b, observe.AttemptInfo{Number: 1})
	o.AttemptDone(ctx, a, observe.AttemptResult{Outcome: observe.Failed})
	o.AttemptDone(ctx, b, observe.AttemptResult{AttemptInfo: observe.AttemptInfo{Number: 1}, Outcome: observe.Won})
	o.RequestDone(ctx, a, observe.RequestResult{Attempts: 2, Winner: 1, Delay: 100 * ms, Latency: 120 * ms, Saved: 10 * ms})
	o.AttemptDone(ctx, a, observe.AttemptResult{Outcome: observe.Lost})
}
