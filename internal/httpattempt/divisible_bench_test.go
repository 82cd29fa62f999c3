package httpattempt_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// BenchmarkHeadingOf reads headers that say nothing of sending a request twice.
func BenchmarkHeadingOf(b *testing.B) {
	usual := http.Header{
		"Accept": {"application/json"}, "Accept-Encoding": {"gzip"}, "Accept-Language": {"en"}, "Authorization": {"Bearer token"}, "Cookie": {"a=b"},
		"If-None-Match": {`"tag"`}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "User-Agent": {"bench/1"}, "X-Request-Id": {"1"}, "X-Tenant": {"t"},
	}
	for name, header := range map[string]http.Header{"none": {}, "ten": usual} {
		b.Run(name, func(b *testing.B) {
			var h httpattempt.Heading
			b.ReportAllocs()
			for b.Loop() {
				h = httpattempt.HeadingOf(header, "Hedge-Attempt", "")
			}
			require.Zero(b, h)
		})
	}
}
