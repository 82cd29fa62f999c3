package forward_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestForwarderAnswersDNSTools has the tools of administrators ask a forwarder, each in the
// ways that it knows.
func TestForwarderAnswersDNSTools(t *testing.T) {
	f := begin(t, secure(t, forward.Config{}))
	port := func(at string) string {
		_, port, err := net.SplitHostPort(at)
		require.NoError(t, err)
		return port
	}
	plain := port(f.Listen[0])
	const answer = "192.0.2.1\n"
	t.Run("dig", func(t *testing.T) {
		at := []string{"@127.0.0.1", "-p", plain, "+short"}
		assert.Equal(t, answer, doubles.RunTool(t, "dig", append(at, "a.example")...))
		assert.Equal(t, answer, doubles.RunTool(t, "dig", append(at, "+tcp", "a.example")...))
		assert.Contains(t, doubles.RunTool(t, "dig", "@127.0.0.1", "-p", plain, "nx.example"), "NXDOMAIN")
		assert.Contains(t, doubles.RunTool(t, "dig", "@127.0.0.1", "-p", plain, "x.home.arpa"), "home.arpa.\t\t10800\tIN\tSOA")
		assert.Equal(t, "localhost.\n", doubles.RunTool(t, "dig", append(at, "-x", "127.0.0.1")...))
		assert.Equal(t, answer+answer, doubles.RunTool(t, "dig", append(at, "+tcp", "+keepopen", "a.example", "a.example")...))
	})
	t.Run("kdig", func(t *testing.T) {
		for _, args := range [][]string{
			{"-p", plain}, {"-p", plain, "+tcp"}, {"-p", port(f.ListenTLS[0]), "+tls"}, {"-p", port(f.ListenHTTPS[0]), "+https"},
			{"-p", port(f.ListenHTTPS[0]), "+https-get"},
		} {
			assert.Equal(t, answer, doubles.RunTool(t, "kdig", append(args, "@127.0.0.1", "+short", "a.example")...), args)
		}
	})
	t.Run("delv", func(t *testing.T) {
		assert.Contains(t, doubles.RunTool(t, "delv", "@127.0.0.1", "-p", plain, "-i", "a.example", "A"), "192.0.2.1")
	})
	t.Run("dnsperf", func(t *testing.T) {
		queries := filepath.Join(t.TempDir(), "queries")
		require.NoError(t, os.WriteFile(queries, []byte("a.example A\nb.example A\nnx.example A\nprinter.local A\n"), 0o600))
		for _, mode := range []string{"udp", "tcp", "dot", "doh"} {
			at := map[string]string{"udp": plain, "tcp": plain, "dot": port(f.ListenTLS[0]), "doh": port(f.ListenHTTPS[0])}[mode]
			rounds, inFlight := 500, "50"
			if mode == "doh" {
				// With more in flight, dnsperf 2.10 says that answers are lost, and that all of
				// them had status 200.
				rounds, inFlight = 5, "1"
			}
			out := doubles.RunTool(t, "dnsperf", "-s", "127.0.0.1", "-p", at, "-d", queries, "-m", mode, "-n", strconv.Itoa(rounds), "-c", "2", "-q", inFlight,
				"-O", "doh-uri=https://127.0.0.1/dns-query")
			assert.Contains(t, out, fmt.Sprintf("Queries completed:    %d (100.00%%)", 4*rounds), mode)
		}
	})
	t.Run("curl", func(t *testing.T) {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
		defer web.Close()
		at := web.Listener.Addr().(*net.TCPAddr)
		assert.Equal(t, "hello", doubles.RunTool(t, "curl", "-sS", "--noproxy", "*", "--doh-url", "https://"+f.ListenHTTPS[0]+"/dns-query", "--doh-insecure",
			"http://loop.example:"+port(at.String())))
	})
}
