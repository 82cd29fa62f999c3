package ranges

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/integration/internal/process"
)

func TestHTTP(t *testing.T) {
	s := &store{gate: new(gate)}
	address, file := nginx(t)
	s.put = func(b []byte) {
		next := file + ".next"
		require.NoError(t, os.WriteFile(next, b, 0o644))
		// nginx makes the tag of the time and the size, and the time has whole seconds.
		second := time.Unix(time.Now().Unix()+s.gate.requests.Load(), 0)
		require.NoError(t, os.Chtimes(next, second, second))
		require.NoError(t, os.Rename(next, file))
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.Transport = transport(t)
	s.fetch = HTTP(&http.Client{Transport: transport(t)}, s.gate.before(t, proxy)+"/catalog")
	s.check(t)
}

// nginx starts one and returns its address, and the name of the file that it serves.
func nginx(t *testing.T) (address, file string) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("there is no nginx")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) // nginx reads it as another user
	address, _ = process.Free(t)
	config := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
daemon off; master_process off; pid %[1]s/pid; error_log stderr;
events {}
http {
	access_log off; sendfile on;
	client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
	server { listen %[2]s; root %[1]s; }
}`, dir, address), 0o644))
	process.Start(t, exec.Command(program, "-p", dir, "-c", config, "-e", "stderr"))
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, limit, 10*time.Millisecond)
	return address, filepath.Join(dir, "catalog")
}
