package repo_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// TestMain runs the tests in the root of the repository, so that they name files as people do.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	doubles.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}

// sources returns the files that match, one after another.
func sources(t *testing.T, patterns ...string) string {
	var all strings.Builder
	for _, p := range patterns {
		names, err := filepath.Glob(p)
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			all.Write(b)
		}
	}
	return all.String()
}
