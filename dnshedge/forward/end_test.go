package main

import (
	"io"
	"log"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// Clients have connected to the metrics and to the port for HTTPS, without a request. Pending questions are answered.
func TestForwarderShutDownDoesNotWaitForIdleConnections(t *testing.T) {
	log.SetOutput(io.Discard)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	f := begin(t, secure(t, &forwarder{client: &dnshedge.Client{Cache: new(dnshedge.Cache), Timeout: 5 * time.Second}})) // the flag's default
	for _, at := range []string{f.metrics, f.doh[0], f.dot[0], f.listen[0]} {
		idle, err := net.Dial("tcp", at)
		require.NoError(t, err)
		defer idle.Close()
	}
	busy := dial(t, f.listen[0])
	require.NoError(t, busy.WriteMsg(ask("slow.example.")))
	time.Sleep(100 * time.Millisecond)
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	start := time.Now()
	require.NoError(t, f.runUntilEnd(signals, 0))
	assert.Less(t, time.Since(start), 4*time.Second, "net/http alone waits five seconds")
	_, err := busy.ReadMsg()
	require.NoError(t, err)
}
