package coredns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/tls"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
)

// certificateFiles writes the certificate of dnstest and its key to files.
func certificateFiles(t *testing.T) (cert, key string) {
	certPEM, keyPEM := dnstest.CertificatePEM()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, certPEM, 0o600))
	require.NoError(t, os.WriteFile(key, keyPEM, 0o600))
	return cert, key
}

// TestClientAsksCoreDNSOverQUIC has CoreDNS as a server of DNS over QUIC and of DNS over HTTP/3.
func TestClientAsksCoreDNSOverQUIC(t *testing.T) {
	cert, key := certificateFiles(t)
	behind := serve(t, new(atomic.Pointer[server]))
	for scheme, zone := range map[string]string{"quic": "quic", "h3": "https3"} {
		t.Run(scheme, func(t *testing.T) {
			instance, err := caddy.Start(caddy.CaddyfileInput{
				Filepath: "Corefile", ServerTypeName: "dns",
				Contents: fmt.Appendf(nil, "%s://.:0 {\n\tbind 127.0.0.1\n\ttls %s %s\n\thedge . udp://%s\n}\n", zone, cert, key, behind.at),
			})
			require.NoError(t, err)
			defer stop(t, instance)
			_, trusting := dnstest.Certificate()
			c := &dnshedge.Client{TLSConfig: trusting, Upstreams: []dnshedge.Upstream{
				{Net: scheme, Addr: instance.Servers()[0].LocalAddr().String(), ServerName: dnstest.Name},
			}}
			defer c.Close()
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() {
					r, _, err := c.Exchange(new(dns.Msg).SetQuestion(fmt.Sprintf("a%d.example.", i), dns.TypeA), "")
					if assert.NoError(t, err) {
						assert.Len(t, r.Answer, 1)
					}
				})
			}
			wg.Wait()
			assert.Zero(t, c.Stats().Resends)
		})
	}
}

// TestCoreDNSForwardsOverQUIC has CoreDNS as a client of a forwarder.
func TestCoreDNSForwardsOverQUIC(t *testing.T) {
	cert, _ := certificateFiles(t)
	behind := serve(t, new(atomic.Pointer[server]))
	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: behind.at}}}
	defer client.Close()
	serverTLS, _ := dnstest.Certificate()
	l, err := quic.Listen("127.0.0.1:0", serverTLS)
	require.NoError(t, err)
	f, err := forward.New(forward.Config{Client: client, Listeners: []forward.Listener{l}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Serve(ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-ended)
	}()
	at := start(t, "forward . quic://%s {\n\t\ttls %s\n\t\ttls_servername %s\n\t}", l.Addr(), cert, dnstest.Name)
	for i := range 20 {
		assert.Len(t, ask(t, at, fmt.Sprintf("a%d.example.", i)).Answer, 1)
	}
	assert.EqualValues(t, 20, client.Stats().Queries)
}
