package httpattempt_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// BenchmarkCopyHeader copies headers without a field that prevents hedging.
func BenchmarkCopyHeader(b *testing.B) {
	usual := http.Header{
		"Accept": {"application/json"}, "Accept-Encoding": {"gzip"}, "Accept-Language": {"en"}, "Authorization": {"Bearer token"}, "Cookie": {"a=b"},
		"If-None-Match": {`"tag"`}, "Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "User-Agent": {"bench/1"}, "X-Request-Id": {"1"}, "X-Tenant": {"t"},
	}
	for name, header := range map[string]http.Header{"none": {}, "ten": usual} {
		b.Run(name, func(b *testing.B) {
			var h httpattempt.HeaderTraits
			var r httpattempt.Requests
			b.ReportAllocs()
			for b.Loop() {
				h = r.CopyHeader(header, httpattempt.AttemptHeaders{Standard: "Hedge-Attempt"})
				r.Reset()
			}
			require.Zero(b, h)
		})
	}
}
