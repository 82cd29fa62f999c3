package hedgetest

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/engine"
)

// An Importer learns what another process has learned. *hedge.Transport, *hedge.Interceptor and *hedge.Hedger are Importers. The
// Transport of an http.Client that hedge.Wrap returns is a *hedge.Transport.
type Importer interface {
	Import(r io.Reader) error
}

// warmCalls is how many calls Warm pretends to have made: so many that a test's own slow calls are still a small part.
const warmCalls = 500

// Warm teaches c that 500 calls to a host have taken usual each. Without it, no call is hedged before ten are known. A call
// is then hedged after usual, give or take 2 %, and again after twice that. Nothing is sent.
//
// The host is that of the URL, without the scheme's own port; the Target of a gRPC connection; or the key that is
// given to hedge.Do. The routes are patterns of hedge.WithRoute, or full methods of gRPC, such as
// "/pkg.Service/Method", for which latency is learned separately; without routes it is the host's own.
//
// Budget and brakes are those of c: by default, 20 hedges are paid for before calls have earned more, and no hedge is
// sent while more than three quarters of the last calls were slow, which is so after 22 slow ones in a row. The test
// fails at once if usual is not positive, or c learns nothing.
func Warm(t testing.TB, c Importer, usual time.Duration, host string, routes ...string) {
	t.Helper()
	if usual <= 0 {
		t.Fatalf("hedgetest: Warm: usual %v is not positive", usual)
	}
	if len(routes) == 0 {
		routes = []string{""}
	}
	now := time.Now()
	e := engine.New(engine.Config{MaxKeys: len(routes)})
	for _, route := range routes {
		k := e.Key(engine.Name{Host: host, Route: route})
		for range warmCalls {
			k.Done(now, engine.Result{Latency: usual, Answered: true})
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
