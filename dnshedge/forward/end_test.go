package forward_test

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/doubles"
)

// Clients have connected to the metrics and to the port for HTTPS, without a request. Pending questions are answered.
func TestServeDoesNotWaitForIdleConnections(t *testing.T) {
	conf := secure(t, forward.Config{Client: &dnshedge.Client{Cache: new(dnshedge.Cache), Timeout: 5 * time.Second}})
	conf.ListenMetrics, conf.Metrics = doubles.FreeAddress(t), http.NotFoundHandler()
	f := begin(t, conf)
	for _, at := range []string{f.ListenMetrics, f.ListenHTTPS[0], f.ListenTLS[0], f.Listen[0]} {
		idle, err := net.Dial("tcp", at)
		require.NoError(t, err)
		defer idle.Close()
	}
	busy := dial(t, f.Listen[0])
	require.NoError(t, busy.WriteMsg(ask("slow.example.")))
	require.Eventually(t, func() bool { return f.Client.Stats().Queries == 1 }, 10*time.Second, time.Millisecond)
	start := time.Now()
	require.NoError(t, f.end())
	assert.Less(t, time.Since(start), 4*time.Second, "net/http alone waits five seconds")
	_, err := busy.ReadMsg()
	require.NoError(t, err)
}
