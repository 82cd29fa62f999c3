package hedgetest

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// An Importer is a hedging client that can load latencies, as [Warm] needs. *hedge.Transport, *hedge.Interceptor and
// *hedge.Hedger are Importers. The Transport of an http.Client from hedge.Wrap is a *hedge.Transport.
type Importer interface {
	Import(r io.Reader) error // Import loads learned latencies that Export of a client has written.
}

// warmCalls is the number of calls that Warm simulates. It is large, so that a few slow calls of the test hardly change
// the hedge delay.
const warmCalls = 500

// Warm adds 500 calls with the latency usual to the learned latencies of c, without sending them. Without Warm, the
// first ten calls to a host are not hedged.
//
// Afterwards, a call is hedged after usual, within 2 %, or after the time of hedge.WithMinDelay (1 ms by default) if
// that is longer. A second hedge follows after the same time.
//
// The argument host is the host of the URL without a default port, the Target of a gRPC connection, or the key passed
// to hedge.Do. With hedge.WithKeyFunc, it is the result of the function.
//
// The routes are patterns of hedge.WithRoute, or full gRPC method names such as "/pkg.Service/Method". Without routes,
// the latencies are added to the host itself; gRPC calls use these only with hedge.WithKeyFunc.
//
// The budget and the pauses of hedging are as usual for c. By default, the first host starts with a budget of ten
// hedges, and ten calls add one more hedge. After 21 slow calls in a row, hedging is paused as in an outage.
//
// Warm stops the test with a failure if usual is not positive, or if the Import of c fails.
func Warm(t testing.TB, c Importer, usual time.Duration, host string, routes ...string) {
	t.Helper()
	if usual <= 0 {
		t.Fatalf("hedgetest: Warm: usual %v is not positive", usual)
	}
	if len(routes) == 0 {
		routes = []string{""}
	}
	now := time.Now()
	e := policy.New(policy.Config{MaxKeys: len(routes)})
	for _, route := range routes {
		k := e.Key(policy.Name{Host: host, Route: route})
		for range warmCalls {
			k.RecordCall(now, policy.Result{Latency: usual, Answered: true})
		}
	}
	var learned bytes.Buffer
	if err := e.Export(&learned, now); err != nil {
		t.Fatalf("hedgetest: Warm: %v", err)
	}
	if err := c.Import(&learned); err != nil {
		t.Fatalf("hedgetest: Warm: %v", err)
	}
}
