//go:build unix

package steering_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/steering"
)

// TestReadFileRefusesFileThatIsNotRegular reads a FIFO, which has no writer, so that opening it would block. It also reads a
// directory.
func TestReadFileRefusesFileThatIsNotRegular(t *testing.T) {
	fifo, dir := filepath.Join(t.TempDir(), "fifo"), t.TempDir()
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, path := range []string{fifo, dir} {
		_, err := steering.ReadFile(path)
		assert.EqualError(t, err, "steering: "+path+" is not a regular file")
	}
}
