package bhope_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

func recordLatencies(p *bhope.Policy, at time.Duration, n int, took func(i int) time.Duration) {
	for i := range n {
		p.StartRequest(at, "h")
		p.RecordLatency(at, "h", took(i))
	}
}

func TestDelayIsTheNinetiethPercentile(t *testing.T) {
	p := bhope.New(100)
	recordLatencies(p, 0, 20, func(i int) time.Duration { return 50 * ms })
	assert.InEpsilon(t, 50*ms, p.StartRequest(0, "h"), 0.01)
	recordLatencies(p, 0, 10_000, func(i int) time.Duration { return time.Duration(i%100+1) * ms })
	assert.InEpsilon(t, 90*ms, p.StartRequest(0, "h"), 0.02)
	assert.Equal(t, 10*ms, p.StartRequest(0, "other"), "hosts are apart")
}

func TestFirstTwentyAreGuessed(t *testing.T) {
	p := bhope.New(100)
	for range 20 {
		assert.Equal(t, 10*ms, p.StartRequest(0, "h"))
		p.RecordLatency(0, "h", 200*ms)
	}
	assert.InEpsilon(t, 200*ms, p.StartRequest(0, "h"), 0.01)
}

func TestDelayHasAFloor(t *testing.T) {
	p := bhope.New(100)
	recordLatencies(p, 0, 100, func(int) time.Duration { return ms / 10 })
	assert.Equal(t, ms, p.StartRequest(0, "h"))
}

func TestWindowsTumble(t *testing.T) {
	p := bhope.New(100)
	recordLatencies(p, 0, 100, func(int) time.Duration { return 100 * ms })
	recordLatencies(p, 31*sec, 100, func(int) time.Duration { return 5 * ms })
	assert.InEpsilon(t, 100*ms, p.StartRequest(59*sec, "h"), 0.01, "both windows count alike")
	assert.InEpsilon(t, 5*ms, p.StartRequest(61*sec, "h"), 0.01)
	assert.Equal(t, 10*ms, p.StartRequest(200*sec, "h"), "idle, it forgets")
}

func TestBucketFillsByTheClock(t *testing.T) {
	p := bhope.New(100)
	admitted := func(at time.Duration) (n int) {
		for p.AdmitHedge(at) {
			n++
		}
		return n
	}
	assert.Equal(t, 20, admitted(0))
	assert.Equal(t, 5, admitted(500*ms))
	assert.Equal(t, 20, admitted(time.Hour))
	assert.True(t, bhope.New(0).AdmitHedge(0), "there is always one")
}
