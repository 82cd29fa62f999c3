package dnshedge_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// unreadable makes a file that no user can open: a symbolic link to itself.
func unreadable(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.Symlink(path, path))
	return path
}

func TestClientReadsHostsFileAgainAfterError(t *testing.T) {
	path := unreadable(t)
	bubble(t, func(l *lab) {
		l.serve("a", with("A 198.51.100.1"))
		c := l.client(&dnshedge.Client{Hosts: path}, l.up("udp", "a"))
		_, _, err := l.ask(c, "x.example.")
		require.ErrorIs(t, err, syscall.ELOOP)
		require.ErrorContains(t, c.Validate(), "Client.Hosts")
		require.NoError(t, os.Remove(path))
		write(t, path, "192.0.2.1 x.example\n")
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		assert.NoError(t, c.Validate())
	})
}

func TestClientStaysClosedBeforeHostsFileIsRead(t *testing.T) {
	path := unreadable(t)
	bubble(t, func(l *lab) {
		l.serve("a", with("A 198.51.100.1"))
		c := l.client(&dnshedge.Client{Hosts: path}, l.up("udp", "a"))
		_, _, err := l.ask(c, "x.example.")
		require.Error(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, os.Remove(path))
		write(t, path, "")
		_, _, err = l.ask(c, "x.example.")
		require.ErrorContains(t, err, "client is closed")
	})
}

func TestClientReadsResolvConfAgainAfterError(t *testing.T) {
	path := unreadable(t)
	bubble(t, func(l *lab) {
		a := l.serve("a", with("3600 A 192.0.2.1"))
		c := l.client(&dnshedge.Client{ResolvConf: path, Cache: new(dnshedge.Cache)})
		_, _, err := l.ask(c, "x.example.")
		var e *dnshedge.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, syscall.ELOOP)
		require.ErrorContains(t, err, path)
		text, err := os.ReadFile(l.resolvConf("", "a"))
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		write(t, path, string(text))
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "the error is not cached")

		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Symlink(path, path))
		time.Sleep(5 * time.Second)
		asked := a.Queries.Load()
		l.must(c, "x.example.")
		assert.Equal(t, asked, a.Queries.Load(), "answers stay in the cache while the file cannot be read")
		l.must(c, "y.example.")
	})
}

// A Dialer without a descriptor fails this question and no other.
func TestClientRecoversFromLackOfDescriptors(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		for _, network := range []string{"udp", "tcp", "tls", "https"} {
			c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up(network, "a"))
			d := &failingDialer{Dialer: c.Dialer, err: syscall.EMFILE}
			c.Dialer = d
			_, _, err := l.ask(c, "x.example.")
			require.ErrorIs(t, err, syscall.EMFILE, network)
			d.err = nil
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.1", addr(r), network)
		}
	})
}

// failingDialer is a Dialer that returns err unless it is nil.
type failingDialer struct {
	dnshedge.Dialer
	err error
}

func (d *failingDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: d.err}
	}
	return d.Dialer.DialContext(ctx, network, address)
}

type panickingLogger struct{ slog.Handler }

func (panickingLogger) WithAttrs([]slog.Attr) slog.Handler { panic("in a logger") }

func TestClientReportsPanicOfLogger(t *testing.T) {
	c := &dnshedge.Client{Logger: slog.New(panickingLogger{slog.DiscardHandler})}
	assert.PanicsWithValue(t, "in a logger", func() { _ = c.Validate() })
	require.ErrorContains(t, c.Validate(), "Client.Logger panicked")
}
