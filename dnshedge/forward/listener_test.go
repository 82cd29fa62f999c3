package forward

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// The system chooses a port for each of two addresses.
func TestForwarderSharesChosenPortOfAddress(t *testing.T) {
	type sockets struct{ udp, tcp int }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	client := new(dnshedge.Client)
	defer client.Close()
	for _, n := range []int{0, 1, 4} {
		f, err := New(Config{
			Client: client, Listen: []string{"127.0.0.1:0", "localhost:0"}, Limits: &Limits{Conns: 10, ConnsPerClient: 10, UDPSockets: n},
		})
		require.NoError(t, err)
		byPort := make(map[int]sockets)
		for _, s := range f.services {
			if pc, ok := s.Closer.(net.PacketConn); ok {
				port := pc.LocalAddr().(*net.UDPAddr).Port
				byPort[port] = sockets{byPort[port].udp + 1, byPort[port].tcp}
			} else {
				port := s.Closer.(net.Listener).Addr().(*net.TCPAddr).Port
				byPort[port] = sockets{byPort[port].udp, byPort[port].tcp + 1}
			}
		}
		assert.Len(t, byPort, 2)
		for port, s := range byPort {
			assert.Equal(t, sockets{min(n, maxSockets), 1}, s, "%d UDP sockets, port %d", n, port)
		}
		assert.NoError(t, f.Serve(ended))
	}
}
