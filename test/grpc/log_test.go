//go:build !hedge_nogrpc

package grpc_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestLogRecordsNameLatencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		c := warmCaller(t, read, hedge.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		for range fixture.UntilPause {
			_, err := c.get(t.Context(), &invoker{answer: failsWith(ms, 8)}) // ResourceExhausted
			require.Error(t, err)
		}
		assert.Contains(t, text.String(), `msg="hedge: paused" protocol=grpc host="" route=`+read+" reason=paused\n")
		assert.Equal(t, 1, strings.Count(text.String(), "\n"))
	})
}
