package reclab_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/reclab"
	"github.com/gohedge/hedge/internal/netsim"
)

var (
	questions = flag.Int("questions", 500, "")
	slowest   = flag.Int("slowest", 0, "")
	seeds     = flag.Int("seeds", 1, "")
	scenario  = flag.String("scenario", "broken", "")
)

func TestMain(m *testing.M) {
	reclab.Resolve()
	flag.Parse()
	os.Exit(m.Run())
}

func TestKernel(t *testing.T) {
	rows, err := reclab.Run(context.Background(), reclab.Config{Seed: 1, Questions: *questions, Scenario: *scenario, Contenders: []string{"unbound", "unbound-stock", "named", "pdns", "kresd"}, Skipped: func(s string) { t.Log(s) }})
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, r := range rows {
		t.Log(r.Contender, r.Quantile(.5), r.Quantile(.9), r.Quantile(.95), r.Quantile(.99), r.Quantile(.999), "fail", r.Failures, "sent", r.Sent(), r.UDP, r.TCP, "cpu", r.CPU)
	}
}
