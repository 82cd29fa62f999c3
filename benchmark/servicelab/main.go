// Command servicelab measures first calls and lookups over a simulated network, in fake time:
//
//	go run ./benchmark/servicelab
//
// A service calls four others for each request, over TLS, ten times a second. Each of them, and the DNS server, is 10 ms
// away. They answer after 5 ms ± 2 ms (lognormal), and one DNS answer in 200 takes 150 ms longer. At first each call has
// a new connection. Each row of the table adds an improvement.
//
// The second table compares pools of resolver threads with a dnshedge.Client, see runLookups.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/names"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	ms       = time.Millisecond
	rate     = 10 // requests per second
	requests = 1200
)

// services are the hosts that are called. The certificate of package httptest has their names.
var services = []string{"a.example.com", "b.example.com", "c.example.com", "d.example.com"}

// A clientFeatures is the set of features of the HTTP client with which a service calls four other hosts, for example
// the resumption of TLS sessions. The table of results has a row for each set.
type clientFeatures struct {
	Name    string
	Cache   bool // package names stores the addresses; false: Go's resolver looks them up for each connection
	Resume  bool // connections resume TLS sessions
	Persist bool // HTTP/2, and connections stay open; false: HTTP/1.1, and idle connections are closed after 50 ms
}

var featureSets = []clientFeatures{
	{Name: "new connections"},
	{Name: "+ `names.Names`", Cache: true},
	{Name: "+ `ResumeTLSSessions`", Cache: true, Resume: true},
	{Name: "+ HTTP/2, kept open", Cache: true, Resume: true, Persist: true},
}

// A serviceRow has the latencies of the requests to a service that makes four calls to other hosts for each. It also
// has the numbers per minute of DNS lookups and TLS handshakes by the service's HTTP client.
type serviceRow struct {
	P50, P99               time.Duration
	Lookups, Full, Resumed float64 // lookups of hosts, and TLS handshakes of both kinds
}

var measureService = bubble.New("service", runService)

func main() {
	_, _ = (&net.Resolver{PreferGo: true}).LookupHost(context.Background(), "localhost") // reads resolv.conf outside of the bubbles
	helper.RunIfHelper()
	fmt.Print("| a request with four calls | p50 ms | p99 ms | lookups a minute | full handshakes | resumed |\n|---|--:|--:|--:|--:|--:|\n")
	for _, s := range featureSets {
		r, err := measureService.Run(context.Background(), s)
		if err != nil {
			log.Fatal("servicelab: ", err)
		}
		fmt.Printf("| %s | %.1f | %.1f | %.0f | %.0f | %.0f |\n", s.Name, millis(r.P50), millis(r.P99), r.Lookups, r.Full, r.Resumed)
	}
	if err := printLookupTable(context.Background(), os.Stdout); err != nil {
		log.Fatal("servicelab: ", err)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(ms) }

// startNetwork returns a network with a client, a DNS server and the hosts of four services. responseLink is the path
// of DNS responses. Its loss applies to all paths from the client as well.
func startNetwork(responseLink netsim.Profile) (*netsim.Network, *dnstest.Server, error) {
	hosts := append([]string{"client", "nameserver"}, services...)
	n, err := netsim.NewMemory(1, hosts...)
	if err != nil {
		return nil, nil, err
	}
	for _, host := range hosts[1:] {
		n.Set("client", host, netsim.Profile{Delay: netsim.Constant(5 * ms), Loss: responseLink.Loss})
	}
	n.Link("nameserver", "client").Set(responseLink)
	s, err := dnsserver.ServeDNS(n.Host("nameserver"), func(q dnstest.Query) dnstest.Reply {
		if q.Question[0].Qtype != dns.TypeA {
			return dnstest.Reply{Msg: dnstest.Answer(q)}
		}
		host := strings.TrimSuffix(q.Question[0].Name, ".")
		if !slices.Contains(services, host) {
			host = "client"
		}
		return dnstest.Reply{Msg: dnstest.Answer(q, "60 A "+n.Host(host).Addr().String())}
	})
	return n, s, err
}

func newGoResolver(n *netsim.Network) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.Host("client").DialContext(ctx, network, "nameserver:53")
	}}
}

func runService(ctx context.Context, s clientFeatures) (row serviceRow, err error) {
	n, nameserver, err := startNetwork(netsim.Profile{Delay: netsim.Spikes(netsim.Constant(5*ms), 1./200, netsim.Constant(150*ms))})
	if err != nil {
		return row, err
	}
	defer n.Close()
	defer nameserver.Close()
	deviation := math.Sqrt(math.Log(1 + 4./25)) // of the logarithm of a duration whose mean is 5 and whose deviation is 2
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	for _, host := range services {
		site := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Duration(5 * float64(ms) * math.Exp(rand.NormFloat64()*deviation-deviation*deviation/2)))
		}))
		_ = site.Listener.Close()
		if site.Listener, err = n.Host(host).Listen("tcp", ":443"); err != nil {
			return row, err
		}
		site.EnableHTTP2, site.Config.ErrorLog = true, log.New(io.Discard, "", 0)
		site.StartTLS()
		defer site.Close()
		config.RootCAs.AddCert(site.Certificate())
	}
	var full, resumed, failed atomic.Int64
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if state.DidResume {
			resumed.Add(1)
		} else {
			full.Add(1)
		}
		return nil
	}
	client, stop := newClient(s, n, config)
	defer stop()
	latencies := make([]time.Duration, requests)
	lab.Load{Interarrival: lab.ConstantRate(rate)}.Run(ctx, requests, func(i int) {
		start := time.Now()
		var calls sync.WaitGroup
		for _, host := range services {
			calls.Go(func() {
				if resp, err := client.Get("https://" + host); err != nil || resp.Body.Close() != nil {
					failed.Add(1)
				}
			})
		}
		calls.Wait()
		latencies[i] = time.Since(start)
	})
	if failed.Load() > 0 {
		return row, fmt.Errorf("%d calls failed", failed.Load())
	}
	slices.Sort(latencies)
	perMinute := func(n int64) float64 { return float64(n) * 60 * rate / requests }
	return serviceRow{
		P50: latency.Quantile(latencies, 0.5), P99: latency.Quantile(latencies, 0.99), Full: perMinute(full.Load()), Resumed: perMinute(resumed.Load()),
		Lookups: perMinute(nameserver.Queries.Load() / 2), // a lookup has a query for each address family
	}, nil
}

// newClient returns the HTTP client by which a service on the host named "client" of network n calls other hosts, and a
// function that closes it. s are the features of the client. config is the TLS configuration of its connections.
func newClient(s clientFeatures, n *netsim.Network, config *tls.Config) (*http.Client, func()) {
	at, resolver := n.Host("client"), newGoResolver(n)
	base := &http.Transport{TLSClientConfig: config, IdleConnTimeout: 50 * ms}
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, _ := net.SplitHostPort(address)
		addrs, err := resolver.LookupNetIP(ctx, "ip", host+".") // without search domains of this machine
		if err != nil {
			return nil, err
		}
		return at.DialContext(ctx, network, net.JoinHostPort(addrs[0].Unmap().String(), port))
	}
	asked := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "nameserver:53"}}, Dialer: at}
	known := &names.Names{Exchanger: asked, Dialer: at}
	if s.Cache {
		base.DialContext = known.DialContext
	}
	if s.Persist {
		base.IdleConnTimeout, base.ForceAttemptHTTP2 = 90*time.Second, true
	}
	if s.Resume {
		base = hedge.ResumeTLSSessions(base)
	}
	return &http.Client{Transport: known.Drain(base)}, func() {
		base.CloseIdleConnections()
		_ = known.Close()
		_ = asked.Close()
	}
}
