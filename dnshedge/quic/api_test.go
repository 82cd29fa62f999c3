package quic_test

import (
	"testing"

	"github.com/gohedge/hedge/internal/apitest"
)

// TestAPIIsAsWritten keeps api/v0.txt and the exported API the same: see docs/design/versioning.md.
func TestAPIIsAsWritten(t *testing.T) {
	apitest.AssertSameAPI(t, "api/v0.txt")
}
