package nameservers

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDialUDPBehavesLikePackageNet requires the same of dialUDP and of net.DialUDP.
func TestDialUDPBehavesLikePackageNet(t *testing.T) {
	for name, dial := range map[string]func(uint16, netip.AddrPort) (net.Conn, error){
		"dialUDP": dialUDP,
		"net.DialUDP": func(port uint16, to netip.AddrPort) (net.Conn, error) {
			return dialUDPByNet(&net.UDPAddr{Port: int(port)}, to)
		},
	} {
		for _, host := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
			t.Run(name+" "+host, func(t *testing.T) { testUDPConn(t, dial, netip.MustParseAddr(host)) })
		}
	}
}

func testUDPConn(t *testing.T, dial func(uint16, netip.AddrPort) (net.Conn, error), host netip.Addr) {
	server := listenUDP(t, host)
	to := server.LocalAddr().(*net.UDPAddr).AddrPort()
	stranger := listenUDP(t, host)
	c, err := dialFreePort(dial, to)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))

	// The server sees the port that was wanted, and messages of other sockets are not received.
	b := make([]byte, 8)
	_, err = c.Write([]byte("query"))
	require.NoError(t, err)
	n, from, err := server.ReadFromUDPAddrPort(b)
	require.NoError(t, err)
	assert.Equal(t, "query", string(b[:n]))
	assert.EqualValues(t, c.LocalAddr().(*net.UDPAddr).Port, from.Port())
	assert.Equal(t, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), addrPortOf(c.RemoteAddr()))
	_, _ = stranger.WriteToUDPAddrPort([]byte("forged"), from)
	for _, message := range []string{"", "answer"} { // an empty message is not the end of a stream
		_, err = server.WriteToUDPAddrPort([]byte(message), from)
		require.NoError(t, err)
		n, err = c.Read(b)
		require.NoError(t, err)
		assert.Equal(t, message, string(b[:n]))
	}

	// The errors are those of package net.
	_, err = dial(from.Port(), to)
	requireOpError(t, err, "dial", inUse)
	require.NoError(t, c.SetDeadline(time.Unix(1, 0)))
	_, err = c.Read(b)
	requireOpError(t, err, "read", os.ErrDeadlineExceeded)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	if runtime.GOOS == "linux" {
		require.NoError(t, server.Close())
		_, err = c.Write([]byte("query"))
		require.NoError(t, err)
		_, err = c.Read(b)
		requireOpError(t, err, "read", syscall.ECONNREFUSED) // from the ICMP message
	}
	closed := time.AfterFunc(10*time.Millisecond, func() { _ = c.Close() })
	defer closed.Stop()
	_, err = c.Read(b)
	requireOpError(t, err, "read", net.ErrClosed)
	_, err = c.Write(b)
	requireOpError(t, err, "write", net.ErrClosed)
}

// inUse is the error of a second socket with the same port.
var inUse = map[bool]syscall.Errno{false: syscall.EADDRINUSE, true: 10048}[runtime.GOOS == "windows"]

func listenUDP(t *testing.T, host netip.Addr) *net.UDPConn {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 0)))
	if err != nil && host.Is6() && !host.Is4In6() {
		t.Skipf("no IPv6: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

// dialFreePort opens a socket with a port that was free a moment ago.
func dialFreePort(dial func(uint16, netip.AddrPort) (net.Conn, error), to netip.AddrPort) (c net.Conn, err error) {
	for range 10 {
		var free *net.UDPConn
		if free, err = net.ListenUDP("udp", nil); err != nil {
			return nil, err
		}
		port := uint16(free.LocalAddr().(*net.UDPAddr).Port)
		_ = free.Close()
		if c, err = dial(port, to); err == nil {
			break
		}
	}
	return c, err
}

func addrPortOf(a net.Addr) netip.AddrPort {
	p := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func requireOpError(t *testing.T, err error, op string, want error) {
	t.Helper()
	var e *net.OpError
	require.ErrorAs(t, err, &e)
	assert.Equal(t, op, e.Op)
	assert.Equal(t, "udp", e.Net)
	assert.ErrorIs(t, err, want)
	_, isPathError := e.Err.(*os.PathError)
	assert.False(t, isPathError)
}
