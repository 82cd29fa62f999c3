package hedgetest

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// An Importer loads the export of another client. *hedge.Transport, *hedge.Interceptor and *hedge.Hedger are Importers.
// The Transport of an http.Client from hedge.Wrap is a *hedge.Transport.
type Importer interface {
	Import(r io.Reader) error
}

// warmCalls is the number of calls that Warm simulates. It is large, so that slow calls of the test remain a small
// share.
const warmCalls = 500

// Warm makes c learn 500 calls to a host with the latency usual, without sending them. Without Warm, the first ten
// calls are not hedged. Afterwards, a call is hedged after usual, within 2 %, or after the time of hedge.WithMinDelay
// (1 ms by default) if that is longer. A second hedge follows after the same time.
//
// The host is the host of the URL without a default port, the Target of a gRPC connection, the result of
// hedge.WithKeyFunc's function, or the key passed to hedge.Do.
//
// The routes are patterns of hedge.WithRoute, or full gRPC method names such as "/pkg.Service/Method". Without routes,
// the latency is that of the host itself, which gRPC calls only use with hedge.WithKeyFunc.
//
// The budget and the pauses of hedging are those of c. By default, the first host has a budget of ten hedges, and ten
// calls earn another one. After 21 slow calls in a row, hedging is paused as in an outage.
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
