package hedge_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/gohedge/hedge/internal/doubles"
)

// TestMain fails if an example leaves a goroutine behind. Examples that show what is logged have loggers of their own.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	doubles.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}

type roundTripper = doubles.RoundTripperFunc
