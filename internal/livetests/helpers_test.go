// Package livetests tests hedge as its users see it: by exported names alone, with real servers and clients. All but the tests of
// frozen connections are over loopback, in real time.
package livetests_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/grpctest"
	"github.com/gohedge/hedge/internal/hedgetest"
)

const ms = time.Millisecond

var errDown = errors.New("connection refused")

type (
	server       = hedgetest.Server
	roundTripper = hedgetest.RoundTripperFunc
)

var (
	protocols = hedgetest.Protocols
	serve     = hedgetest.Serve
	base      = hedgetest.Base
	fetch     = hedgetest.Fetch
	teach     = hedgetest.Teach
	pause     = hedgetest.Pause
	newGate   = hedgetest.NewGate
	request   = hedgetest.Request
	text      = hedgetest.Text

	serveGRPC  = grpctest.Serve
	dial       = grpctest.Dial
	overMemory = grpctest.OverMemory
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	hedgetest.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}
