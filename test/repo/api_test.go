//go:build !hedge_nogrpc

package repo_test

import (
	"testing"

	"github.com/gohedge/hedge/internal/apitest"
)

// TestAPIIsAsWritten keeps docs/api/v0.txt and the exported API the same: see docs/design/versioning.md. Benchmarks are no API.
func TestAPIIsAsWritten(t *testing.T) {
	apitest.AssertSameAPI(t, "docs/api/v0.txt")
}
