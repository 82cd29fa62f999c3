// Package endpoints compares hedge.WithEndpoints with each choice that does not change: two nginx in network namespaces of their own, of which
// the far one is 80 ms away.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/netsim"
)

const (
	away    = 80 * time.Millisecond // there and back
	farther = 220 * time.Millisecond
)

// lab is three hosts: the client, and two with an nginx. That of near has a backend behind it, for the calls that are to be slow there.
type lab struct {
	net       *netsim.Network
	near, far string // addresses

	mu    sync.RWMutex // is held while a connection is opened; guards ended
	ended bool
}

func newLab(t *testing.T) *lab {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("there is no nginx")
	}
	network, err := netsim.NewKernel(1, "client", "near", "far")
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	l := &lab{net: network, near: network.Host("near").Addr().String() + ":80", far: network.Host("far").Addr().String() + ":80"}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = true
		require.NoError(t, network.Close())
	})
	network.Set("client", "far", netsim.Profile{Delay: netsim.Constant(away / 2)})

	backend, err := network.Host("near").Listen("tcp", ":9000")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rand.IntN(10) == 0 {
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write([]byte("catalog"))
	})}
	go func() { _ = server.Serve(backend) }()
	t.Cleanup(func() { _ = server.Close() })
	for host, behind := range map[string]string{"near": network.Host("near").Addr().String() + ":9000", "far": "127.0.0.1:9"} {
		l.start(t, program, host, behind)
	}
	return l
}

// start starts the nginx of a host.
func (l *lab) start(t *testing.T, program, host, behind string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // nginx reads it as another user
	require.NoError(t, os.WriteFile(filepath.Join(dir, "catalog"), []byte("catalog"), 0o644))
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
daemon off; master_process off; pid %[1]s/pid; error_log stderr crit;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000;
	client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	split_clients $request_id $fails { 10%% 1; * 0; }
	upstream backend { server %[2]s; keepalive 64; }
	server {
		listen 80;
		location /well/ { alias %[1]s/; }
		location /down/ { return 503; }
		location /tenth-fails/ { if ($fails) { return 500; } alias %[1]s/; }
		location /tenth-slow/ { proxy_pass http://backend/; proxy_http_version 1.1; proxy_set_header Connection ""; }
	}
}`, dir, behind), 0o644))
	cmd := exec.Command(program, "-p", dir, "-c", config, "-e", "stderr")
	cmd.Stderr = os.Stderr
	require.NoError(t, l.net.Host(host).Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		c, err := l.net.Host("client").DialContext(t.Context(), "tcp", l.net.Host(host).Addr().String()+":80")
		if err == nil {
			c.Close()
		}
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
}

// transport returns one whose connections are the client's.
func (l *lab) transport(t *testing.T) *http.Transport {
	tr := &http.Transport{MaxIdleConnsPerHost: 512, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		l.mu.RLock() // net/http goes on with connections that nobody waits for any more
		defer l.mu.RUnlock()
		if l.ended {
			return nil, net.ErrClosed
		}
		return l.net.Host("client").DialContext(ctx, network, address)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}
