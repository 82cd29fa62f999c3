// Package process runs servers that are programs of their own, for as long as a test lasts.
package process

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Free returns an address that nothing listens at, and its port.
func Free(t *testing.T) (address, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err = net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return l.Addr().String(), port
}

// Start starts cmd, which is stopped when the test ends. What it prints is logged if the test has failed.
func Start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
}
