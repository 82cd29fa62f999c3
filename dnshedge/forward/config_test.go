package forward_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestNewReportsInvalidConfig(t *testing.T) {
	c := new(dnshedge.Client)
	here := []string{"127.0.0.1:0"}
	serving, _ := dnstest.Certificate()
	for want, conf := range map[string]forward.Config{
		"forward: Config.Client is nil; want a Client":                                     {Listen: here},
		"forward: Config has no address; want one in Listen, ListenTLS or ListenHTTPS":     {Client: c},
		"forward: Config.TLSConfig has no certificate; ListenTLS and ListenHTTPS need one": {Client: c, ListenTLS: here, TLSConfig: new(tls.Config)},
		"forward: Config has one of ListenMetrics and Metrics; want both or none":          {Client: c, Listen: here, ListenMetrics: "127.0.0.1:0"},
		"Conns:-1 ":               {Client: c, Listen: here, Limits: &forward.Limits{Conns: -1}},
		"QuestionsPerSecond:NaN ": {Client: c, Listen: here, Limits: &forward.Limits{QuestionsPerSecond: math.NaN()}},
		"forward: Config.Client: dnshedge: Client.Timeout": {Client: &dnshedge.Client{Timeout: -1}, Listen: here},
		`forward: Config.Listen has ""; want a port`:       {Client: c, Listen: []string{"127.0.0.1:0", ""}},
		`forward: Config.Listen has "127.0.0.1:"; `:        {Client: c, Listen: []string{"127.0.0.1:"}},
		`forward: Config.ListenTLS has "[::1]:"; `:         {Client: c, ListenTLS: []string{"[::1]:"}, TLSConfig: serving},
		`forward: Config.ListenHTTPS has ":"; `:            {Client: c, ListenHTTPS: []string{":"}, TLSConfig: serving},
		`forward: Config.ListenMetrics has ":"; `:          {Client: c, Listen: here, ListenMetrics: ":", Metrics: http.NotFoundHandler()},
		"forward: Config.Allow has invalid Prefix; ":       {Client: c, Listen: here, Allow: forward.AccessList{netip.MustParsePrefix("::1/128"), {}}},
		"forward: Config.Allow has ::ffff:192.0.2.0/120; ": {Client: c, Listen: here, Allow: forward.AccessList{netip.MustParsePrefix("::ffff:192.0.2.0/120")}},
		"forward: listen on udp nowhere: ":                 {Client: c, Listen: []string{"nowhere"}},
		"forward: listen on tcp nowhere: ":                 {Client: c, Listen: []string{"nowhere"}, Limits: new(forward.Limits)},
	} {
		_, err := forward.New(conf)
		assert.ErrorContains(t, err, want)
	}
}

func TestNewClosesListenersAfterError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	at := doubles.FreeAddress(t)
	_, err = forward.New(forward.Config{Client: new(dnshedge.Client), Listen: []string{at, taken.Addr().String()}})
	require.Error(t, err)
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	l.Close()
	pc, err := net.ListenPacket("udp", at)
	require.NoError(t, err)
	pc.Close()
}

func TestServeReturnsErrorOfListener(t *testing.T) {
	conf := secure(t, forward.Config{Client: new(dnshedge.Client)})
	conf.TLSConfig.CipherSuites = []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA} // not allowed for HTTP/2
	f, err := forward.New(conf)
	require.NoError(t, err)
	assert.ErrorContains(t, f.Serve(t.Context()), "CipherSuites")
}

func TestServeClosesListenersOfEndedContext(t *testing.T) {
	at := doubles.FreeAddress(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		f, err := forward.New(forward.Config{Client: new(dnshedge.Client), Listen: []string{at}})
		require.NoError(t, err, "the first one is closed")
		require.NoError(t, f.Serve(ended))
	}
}

// A limit of zero is zero, also where a dnshedge.Server takes it for a default.
func TestForwarderZeroLimitsAreZero(t *testing.T) {
	for name, tc := range map[string]struct {
		limits               forward.Limits
		overUDP, overStreams bool
	}{
		"no limit of questions": {forward.Limits{Conns: 9, ConnsPerClient: 9, UDPSockets: 1}, true, true},
		"no Conns":              {forward.Limits{ConnsPerClient: 9, UDPSockets: 1}, true, false},
		"no ConnsPerClient":     {forward.Limits{Conns: 9, UDPSockets: 1}, true, false},
		"no UDPSockets":         {forward.Limits{Conns: 9, ConnsPerClient: 9}, false, true},
	} {
		f := begin(t, secure(t, forward.Config{Limits: &tc.limits}))
		for network, at := range map[string]string{"tcp": f.Listen[0], "tcp-tls": f.ListenTLS[0]} {
			_, err := exchange(t, network, at, "a.example.")
			assert.Equal(t, tc.overStreams, err == nil, "%s: %s: %v", name, network, err)
		}
		web, _ := overHTTP2(t, "127.0.0.1")
		assert.Equal(t, tc.overStreams, overHTTPS(t, web, f.ListenHTTPS[0], "a.example.") == nil, name)
		if !tc.overUDP { // nothing uses the port
			pc, err := net.ListenPacket("udp", f.Listen[0])
			require.NoError(t, err, name)
			pc.Close()
			continue
		}
		_, err := exchange(t, "udp", f.Listen[0], "a.example.")
		assert.NoError(t, err, name)
	}
}

func TestForwarderAnswersOnSeveralSockets(t *testing.T) {
	f := begin(t, forward.Config{Limits: &forward.Limits{UDPSockets: 4}})
	for range 64 { // each from another port
		r, err := exchange(t, "udp", f.Listen[0], "a.example.")
		require.NoError(t, err)
		assert.Len(t, r.Answer, 1)
	}
}

// Two listeners share the limit, so that a connection may lose its slot before it is accepted.
func TestForwarderLimitsConnectionsOfTwoHTTPSAddresses(t *testing.T) {
	conf := secure(t, forward.Config{Limits: &forward.Limits{Conns: 1, ConnsPerClient: 100}})
	conf.ListenHTTPS = append(conf.ListenHTTPS, doubles.FreeAddress(t))
	f := begin(t, conf)
	var wg sync.WaitGroup
	for _, at := range f.ListenHTTPS {
		wg.Go(func() {
			for range 100 {
				conn, err := net.Dial("tcp", at)
				if assert.NoError(t, err) {
					defer conn.Close()
				}
			}
		})
	}
	wg.Wait()
	for _, at := range f.ListenHTTPS {
		require.Eventually(t, func() bool {
			web, _ := overHTTP2(t, "127.0.0.1")
			return overHTTPS(t, web, at, "a.example.") == nil
		}, 5*time.Second, 10*time.Millisecond)
	}
}

func TestParseNetworkParsesNetworksAndAddresses(t *testing.T) {
	assert.Equal(t, forward.AccessList{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("192.0.2.1/32"),
	}, networks(t, "192.0.2.7/24", "2001:db8::1", "::ffff:192.0.2.1"))
	for _, s := range []string{"192.0.2.0/33", "x", "", "fe80::1%eth0", "::ffff:192.0.2.0/120"} {
		_, err := forward.ParseNetwork(s)
		assert.Error(t, err, s)
	}
}

func TestLocalNetworksContainsPrivateAddresses(t *testing.T) {
	l := forward.LocalNetworks()
	for ip, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "10.1.2.3": true, "172.31.0.1": true, "192.168.1.1": true, "fe80::1%eth0": true, "fd00::1": true,
		"::ffff:192.168.1.1": true, "192.0.2.1": false, "2001:db8::1": false, "::ffff:192.0.2.1": false, "172.32.0.1": false,
	} {
		assert.Equal(t, want, l.Contains(netip.MustParseAddr(ip)), ip)
	}
	assert.False(t, l.Contains(netip.Addr{}))
}

func TestForwarderRefusesAllClientsOfEmptyList(t *testing.T) {
	f := begin(t, forward.Config{Allow: forward.AccessList{}})
	r, err := exchange(t, "udp", f.Listen[0], "a.example.")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeRefused, r.Rcode)
}

func TestForwarderKeepsCacheOverRestart(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(io.Discard) })
	file, server := filepath.Join(t.TempDir(), "cache"), upstream(t)
	hits := func() int64 {
		client := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{server}}
		f := begin(t, forward.Config{Client: client, StateFile: file})
		_, err := exchange(t, "udp", f.Listen[0], "a.example.")
		require.NoError(t, err)
		require.NoError(t, f.end())
		return client.Stats().Hits
	}
	assert.Zero(t, hits())
	assert.EqualValues(t, 1, hits())
	assert.Empty(t, logged.String())
	require.NoError(t, os.WriteFile(file, []byte("damaged"), 0o600))
	assert.Zero(t, hits())
	assert.Contains(t, logged.String(), "starting without state")
	assert.EqualValues(t, 1, hits(), "the file is replaced")

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	_, err := forward.New(forward.Config{Client: new(dnshedge.Client), Listen: []string{"127.0.0.1:0"}, StateFile: filepath.Join(file, "\x00")})
	assert.ErrorContains(t, err, "forward: read state: ")
}

// Serve would report it when the state is lost.
func TestNewReportsStateFileThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	servers := filepath.Join(dir, "state.servers")
	require.NoError(t, os.Mkdir(servers, 0o700))
	for name, conf := range map[string]forward.Config{
		"missing folder":   {StateFile: filepath.Join(dir, "missing", "state")},
		"file as folder":   {StateFile: filepath.Join(file, "state")},
		"folder":           {StateFile: dir},
		"folder of second": {StateFile: filepath.Join(dir, "state"), Client: &dnshedge.Client{Exchanger: new(recursor.Resolver)}},
	} {
		if conf.Listen = []string{"127.0.0.1:0"}; conf.Client == nil {
			conf.Client = new(dnshedge.Client)
		}
		_, err := forward.New(conf)
		assert.ErrorContains(t, err, "forward: Config.StateFile cannot be written: ", name)
		conf.Client.Close()
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "no temporary file is left")
}

func TestForwarderKeepsStateOfExchanger(t *testing.T) {
	server := []dnshedge.Upstream{upstream(t)}
	for want, e := range map[string]dnshedge.Exchanger{
		"state state.servers":   new(recursor.Resolver),
		"state state.upstreams": &dnssec.Validator{Exchanger: &dnshedge.Client{Upstreams: server}},
		"state":                 &dnshedge.Client{Upstreams: server},
	} {
		dir := t.TempDir()
		f := begin(t, forward.Config{Client: &dnshedge.Client{Exchanger: e}, StateFile: filepath.Join(dir, "state")})
		require.NoError(t, f.end())
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		var names []string
		for _, file := range files {
			names = append(names, file.Name())
		}
		assert.Equal(t, want, strings.Join(names, " "))
	}
}

func TestMetricsHandlerCountsQuestions(t *testing.T) {
	conf := forward.Config{Client: &dnshedge.Client{Cache: new(dnshedge.Cache)}, ListenMetrics: doubles.FreeAddress(t)}
	conf.Metrics = forward.MetricsHandler("dnsforward", conf.Client)
	f := begin(t, conf)
	for range 2 {
		_, err := exchange(t, "udp", f.Listen[0], "a.example.")
		require.NoError(t, err)
	}
	resp, err := http.Get("http://" + f.ListenMetrics + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for _, line := range []string{
		"# TYPE dnsforward_questions_total counter", "dnsforward_questions_total 2", "dnsforward_cache_hits_total 1",
		"# TYPE dnsforward_cache_bytes gauge", fmt.Sprintf("dnsforward_upstream_queries_total{upstream=%q} 1", "udp://"+f.Client.Upstreams[0].Addr),
	} {
		assert.Contains(t, strings.Split(string(body), "\n"), line)
	}
	assert.NotContains(t, string(body), "%!")
	assert.NotContains(t, string(body), "dnsforward_cache_bytes 0\n")

	var report strings.Builder
	forward.WriteReport(&report, f.Client)
	assert.Contains(t, report.String(), "questions 2  cache hits 1  ")
	assert.NotContains(t, report.String(), "%!")
	report.Reset()
	forward.WriteReport(&report, new(dnshedge.Client))
	assert.Contains(t, report.String(), "cached bytes 0\n", "there is no cache")
}

func TestCertificateFilesReadsRenewedCertificate(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	t.Cleanup(func() { log.SetOutput(io.Discard) })
	synctest.Test(t, func(t *testing.T) {
		cert, key := pemFiles(t, t.TempDir())
		get, err := forward.CertificateFiles(cert, key)
		require.NoError(t, err)
		first, err := get(nil)
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(cert, time.Time{}, time.Unix(1, 0)))
		same, err := get(nil)
		require.NoError(t, err)
		assert.Same(t, first, same)
		time.Sleep(time.Minute)
		second, err := get(nil)
		require.NoError(t, err)
		assert.NotSame(t, first, second)
		require.NoError(t, os.Remove(cert))
		time.Sleep(time.Minute)
		same, err = get(nil)
		require.NoError(t, err)
		assert.Same(t, second, same, "rather than none")
	})
	assert.Contains(t, logged.String(), "keeping the old certificate")
	_, err := forward.CertificateFiles("none", "")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
