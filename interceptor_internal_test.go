//go:build !hedge_nogrpc

package hedge

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// countKnownMethods returns how many methods in keeps the rules of.
func countKnownMethods(in *Interceptor) (n int) {
	in.book.All().Methods.Range(func(any, any) bool { n++; return true })
	return n
}

func TestNamesOfMethodsAreForgotten(t *testing.T) {
	var log bytes.Buffer
	handle := NewInterceptor(WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	handle.Hedges("/a.B/GetItem")
	assert.Zero(t, countKnownMethods(handle), "to ask is no call")
	nothing := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	call := func(method string) {
		require.NoError(t, handle.Unary()(t.Context(), method, nil, nil, nil, nothing))
	}
	for i := range 3 * maxRules {
		call(fmt.Sprintf("/made.up/M%d", i))
		if i%64 == 63 { // counting takes time in proportion to their number
			assert.LessOrEqual(t, countKnownMethods(handle), maxRules)
		}
	}
	assert.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("\n")), maxRules, "the log is bounded as well")

	known := countKnownMethods(handle)
	call("/made.up/" + strings.Repeat("M", 1<<20))
	assert.Equal(t, known, countKnownMethods(handle), "a long name is not kept")
	runtime.KeepAlive(handle)
}

func TestHedgesAreLeftToAGRPCThatSendsThem(t *testing.T) {
	for version, want := range map[string]bool{"1.90.0": true, "1.90.1": true, "1.100.0": true, "2.0.0": true, "1.90.0-dev": true, "1.89.9": false, "1.85.0": false, "0.95.0": false} {
		assert.Equal(t, want, obeys(version, "1.90.0"), version)
		assert.False(t, obeys(version, ""), version)
	}
	in := NewInterceptor(WithServiceConfig(`{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 3}}]}`))
	in.rules.aside = true
	most, why := in.Hedges("/catalog.v1.Catalog/GetItem")
	assert.Zero(t, most)
	assert.Equal(t, "gRPC hedges it, by methodConfig[0].hedgingPolicy", why)
}
