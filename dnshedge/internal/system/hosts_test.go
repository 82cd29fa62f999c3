package system_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/system"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func TestHostsReadsLongFileInBackground(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	write := func(name string) {
		long := strings.Repeat("# a comment of many words\n", 5000)
		require.NoError(t, os.WriteFile(path, []byte(long+"10.0.0.7 "+name+"\n"), 0o600))
	}
	write("old.example")
	var reads []func(context.Context)
	hosts := system.NewHosts(path, func(read func(context.Context)) bool {
		reads = append(reads, read)
		return true
	})
	require.NoError(t, hosts.Load())
	known := func(name string, later time.Duration) bool {
		q, err := wire.NewAuthoritativeQuery(name, 1, false, false)
		require.NoError(t, err)
		return hosts.Find(q, time.Now().Add(later)) != nil
	}
	write("younger.example")
	assert.True(t, known("old.example.", time.Minute), "what it said before is what is said until it has been read")
	assert.True(t, known("old.example.", 2*time.Minute))
	require.Len(t, reads, 1, "one reads it at a time")
	reads[0](t.Context())
	assert.False(t, known("old.example.", 2*time.Minute))
	assert.True(t, known("younger.example.", 2*time.Minute))
}
