package hedgetest

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/policy"
)

// An Importer learns what another process has learned. *hedge.Transport, *hedge.Interceptor and *hedge.Hedger are Importers. The
// Transport of an http.Client that hedge.Wrap returns is a *hedge.Transport.
type Importer interface {
	Import(r io.Reader) error
}

// warmCalls is how many calls Warm pretends to have made: so many that a test's own slow calls are still a small part.
const warmCalls = 500

// Warm teaches c that 500 calls to a host have taken usual each. Without it, no call is hedged before ten are known. A call
// is then hedged after usual, give or take 2 %, or after the time of hedge.WithMinDelay where that is longer (1 ms by default);
// and again after as long. Nothing is sent.
//
// The host is that of the URL, without the scheme's own port; the Target of a gRPC connection; what hedge.WithKeyFunc's
// function returns; or the key that is given to hedge.Do. The routes are patterns of hedge.WithRoute, or full
// methods of gRPC, such as "/pkg.Service/Method", for which latency is learned separately; without routes it is the host's own,
// which calls over gRPC ask for only with hedge.WithKeyFunc.
//
// Budget and brakes are those of c: by default, ten hedges of the first host are paid for at once, each ten calls earn another one,
// and after 21 slow calls in a row no hedge is sent, as in an outage. The test fails at once if usual is not positive, or if c
// refuses to learn.
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
