package quic_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// TestKdigAsksForwarder needs kdig with support for QUIC.
func TestKdigAsksForwarder(t *testing.T) {
	if help, _ := exec.Command("kdig", "--help").CombinedOutput(); !strings.Contains(string(help), "+[no]quic") {
		t.Skip("kdig is not installed, or knows no QUIC")
	}
	f := startForwarder(t, nil)
	_, port, err := net.SplitHostPort(f.doq.Addr().String())
	require.NoError(t, err)
	out := doubles.RunTool(t, "kdig", "@127.0.0.1", "-p", port, "+quic", "a.example", "b.example")
	assert.Equal(t, 2, strings.Count(out, "192.0.2.1"), out)
	assert.Contains(t, out, "QUIC session (QUICv1)")
}
