//go:build !hedge_nogrpc

package grpc_test

import (
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestMain(m *testing.M) { fixture.RunTests(m) }

// Short names of values and functions that the tests of several folders share.
const (
	ms    = time.Millisecond
	site  = fixture.Site
	usual = fixture.UsualLatency
)

var (
	serveGRPC  = grpctest.Serve
	dial       = grpctest.Dial
	overMemory = grpctest.ServeInMemory
	newGate    = doubles.NewGate
)

type (
	recorder     = doubles.Recorder
	roundTripper = doubles.RoundTripperFunc
)
