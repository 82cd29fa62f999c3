// Package livetests tests hedge as its users see it: by exported names alone, with real servers and clients. All but the tests of
// frozen connections are over loopback, in real time.
package livetests_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
)

const ms = time.Millisecond

var errDown = errors.New("connection refused")

type (
	server       = doubles.Server
	roundTripper = doubles.RoundTripperFunc
)

var (
	protocols = doubles.Protocols
	serve     = doubles.NewServer
	base      = doubles.NewTransport
	fetch     = doubles.Fetch
	teach     = doubles.WarmUp
	pause     = doubles.WaitOrCanceled
	newGate   = doubles.NewGate
	request   = doubles.NewRequest
	text      = doubles.ReadBody

	serveGRPC  = grpctest.Serve
	dial       = grpctest.Dial
	overMemory = grpctest.ServeInMemory
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	doubles.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}
