package integration

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/integration/internal/process"
)

var downloads = flag.Int("downloads", 0, "how often TestResume fetches the object with each client, to print what stalls cost; every 20th download meets one")

const objectSize = 8 << 20

// TestResume fetches an object over connections that stall. With -downloads=100 it prints the table of docs/design/benchmarks.md.
func TestResume(t *testing.T) {
	object := make([]byte, objectSize)
	_, _ = rand.Read(object)
	var table strings.Builder
	for _, server := range []struct {
		name  string
		start func(*testing.T, []byte) (address, path string)
		http2 bool
	}{
		{"gofakes3", startS3, false},
		{"nginx", startNginx(""), false},
		{"nginx, HTTP/2", startNginx("http2"), true},
	} {
		t.Run(server.name, func(t *testing.T) {
			address, path := server.start(t, object)
			proxy := stallingProxy(t, address)
			base := http.DefaultTransport.(*http.Transport).Clone()
			if server.http2 {
				base.Protocols = new(http.Protocols)
				base.Protocols.SetUnencryptedHTTP2(true)
			}
			defer base.CloseIdleConnections()
			fetch := func(transport *hedge.Transport) time.Duration {
				start := time.Now()
				require.True(t, bytes.Equal(object, download(t, &http.Client{Transport: transport}, "http://"+proxy.address+path)))
				return time.Since(start)
			}
			learn := func(transport *hedge.Transport) {
				for range 20 {
					fetch(transport)
				}
			}

			transport := hedge.New(base, hedge.WithResume())
			require.NoError(t, transport.Update(func(c *hedge.Config) { // a busy machine spends the budget of so few calls
				c.BudgetPercent, c.MaxHedges = 200, 3
			}))
			learn(transport)
			defer transport.CloseIdleConnections()
			proxy.lasts.Store(int64(limit / 2))
			for range 10 { // on a busy machine a hedge may win before the primary, whose response stalls
				proxy.stallAt.Store(objectSize / 2)
				assert.Less(t, fetch(transport), limit/2)
				if transport.Snapshot().Stats.ResumeWins > 0 {
					break
				}
			}
			assert.Positive(t, transport.Snapshot().Stats.ResumeWins)

			proxy.lasts.Store(int64(time.Second))
			for _, percent := range []int64{0, 50, 99} {
				for _, client := range []string{"hedge", "and WithResume"} {
					if *downloads == 0 {
						continue
					}
					transport := hedge.New(base)
					if client != "hedge" {
						transport = hedge.New(base, hedge.WithResume())
					}
					learn(transport)
					var took []time.Duration
					stalled, twice := 0, int64(0)
					for i := range *downloads {
						if i%20 != 10 {
							took = append(took, fetch(transport))
							continue
						}
						proxy.stallAt.Store(max(percent*objectSize/100, 2048)) // the header arrives
						before, start := proxy.passed.Load(), time.Now()
						took = append(took, fetch(transport))
						proxy.stallAt.Store(-1)
						time.Sleep(time.Until(start.Add(time.Second + 100*time.Millisecond))) // the next one meets no stall
						stalled++
						twice += proxy.passed.Load() - before - objectSize
					}
					transport.CloseIdleConnections()
					slices.Sort(took)
					ms := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
					fmt.Fprintf(&table, "| %s | %d %% | %s | %.0f | %.0f | %.0f | %d of %d | %d |\n", server.name, percent, client,
						ms(0.5), ms(0.9), ms(0.99), transport.Snapshot().Stats.ResumeWins, stalled, twice/int64(max(stalled, 1))>>10)
				}
			}
		})
	}
	if table.Len() > 0 {
		t.Log("\n| server | stalls at | client | p50 ms | p90 ms | p99 ms | resumed | KiB twice |\n|---|--:|---|--:|--:|--:|--:|--:|\n" + table.String())
	}
}

func download(t *testing.T, client *http.Client, url string) []byte {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	require.EqualValues(t, objectSize, resp.ContentLength)
	b := make([]byte, objectSize)
	_, err = io.ReadFull(resp.Body, b)
	require.NoError(t, err)
	return b
}

func startS3(t *testing.T, object []byte) (address, path string) {
	backend := s3mem.New()
	require.NoError(t, backend.CreateBucket("shop"))
	_, err := backend.PutObject("shop", "catalog", map[string]string{}, bytes.NewReader(object), int64(len(object)), nil)
	require.NoError(t, err)
	s := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), "/shop/catalog"
}

// startNginx serves the object with nginx, and skips the test where there is none.
func startNginx(protocol string) func(*testing.T, []byte) (address, path string) {
	return func(t *testing.T, object []byte) (address, path string) {
		nginx, err := exec.LookPath("nginx")
		if err != nil {
			t.Skip("there is no nginx")
		}
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // nginx reads it as another user
		require.NoError(t, os.WriteFile(filepath.Join(dir, "catalog"), object, 0o644))
		address, _ = process.Free(t)
		config := filepath.Join(dir, "nginx.conf")
		require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events {}
http {
	access_log off; sendfile on;
	client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	server { listen %[2]s %[3]s; root %[1]s; }
}`, dir, address, protocol), 0o644))
		process.Start(t, exec.Command(nginx, "-p", dir, "-c", config, "-e", "stderr"))
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
		return address, "/catalog"
	}
}

// A stalls is a proxy whose connections stall on command.
type stalls struct {
	address string
	lasts   atomic.Int64 // ns that a stall lasts
	stallAt atomic.Int64 // the next connection that sends stalls after so many bytes of the answer; -1: none does
	passed  atomic.Int64 // bytes of answers
}

func stallingProxy(t *testing.T, server string) *stalls {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &stalls{address: l.Addr().String()}
	p.stallAt.Store(-1)
	var open sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	open.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { p.serve(ctx, client, server) })
		}
	})
	t.Cleanup(func() {
		stop()
		l.Close()
		open.Wait()
	})
	return p
}

func (p *stalls) serve(ctx context.Context, client net.Conn, server string) {
	defer client.Close()
	backend, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer backend.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); backend.Close() })()
	var left atomic.Int64 // bytes until this connection stalls
	left.Store(-1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer backend.Close() // the server notices that the client is gone
		buf := make([]byte, 4096)
		for {
			n, err := client.Read(buf)
			if at := p.stallAt.Load(); n > 0 && at >= 0 && p.stallAt.CompareAndSwap(at, -1) {
				left.Store(at)
			}
			if _, err2 := backend.Write(buf[:n]); err != nil || err2 != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		at := left.Load()
		size := int64(len(buf))
		if at >= 0 {
			size = min(size, at)
		}
		if at == 0 {
			left.Store(-1)
			select {
			case <-time.After(time.Duration(p.lasts.Load())):
			case <-done:
			case <-ctx.Done():
			}
			continue
		}
		n, err := backend.Read(buf[:size])
		if at > 0 {
			left.CompareAndSwap(at, at-int64(n))
		} else if late := left.Load(); late > 0 { // the request came during this Read
			left.CompareAndSwap(late, max(late-int64(n), 0))
		}
		m, err2 := client.Write(buf[:n])
		p.passed.Add(int64(m))
		if err != nil || err2 != nil {
			break
		}
	}
	client.Close()
	<-done
}
