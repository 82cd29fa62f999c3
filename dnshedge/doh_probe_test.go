package dnshedge_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// A probe uses the only stream of an HTTP/2 connection, or is the last request on a connection for which the server has
// sent GOAWAY.
func TestClientOpensConnectionBesideProbe(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	for name, streams := range map[string]int{"one stream": 1, "GOAWAY": 0} {
		bubble(t, func(l *lab) {
			s := &dnstest.Server{Streams: streams, Handler: func(q dnstest.Query) dnstest.Reply {
				r := good(q)
				switch q.Question[0].Name {
				case ".":
					r.Delay = 1500 * ms
				case "last.example.":
					r.Header = http.Header{"Connection": {"close"}}
				}
				return r
			}}
			openHTTPS(l, s, "a")
			c := l.client(off(), l.up("https", "a"))
			l.must(c, "first.example.")
			var probe sync.WaitGroup
			probe.Go(func() { c.Warm(background) })
			time.Sleep(100 * ms)
			if streams == 0 {
				l.must(c, "last.example.")
				time.Sleep(100 * ms)
			}
			for range 2 {
				r, took := l.must(c, "next.example.")
				assert.Equal(t, "192.0.2.1", addr(r), name)
				assert.LessOrEqual(t, took, 200*ms, name)
			}
			probe.Wait()
		})
	}
}
