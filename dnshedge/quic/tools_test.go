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

// TestKdigAsksForwarder needs kdig with support for QUIC, which Debian has from version 12 on.
func TestKdigAsksForwarder(t *testing.T) {
	if help, _ := exec.Command("kdig", "--help").CombinedOutput(); !strings.Contains(string(help), "+[no]quic") {
		t.Skip("kdig is not installed, or knows no QUIC")
	}
	f := startForwarder(t, nil)
	_, port, err := net.SplitHostPort(f.doq.Addr().String())
	require.NoError(t, err)
	out := doubles.RunTool(t, "kdig", "@127.0.0.1", "-p", port, "+quic", "a.example", "b.example", "long.example", "TXT")
	t.Log(doubles.RunTool(t, "kdig", "-V"))
	assert.Equal(t, 2, strings.Count(out, "192.0.2.1"), out)
	assert.Contains(t, out, "QUIC session (QUICv1)")
	assert.Greater(t, strings.Count(out, "x"), 60_000, "a response of many packets")
}
