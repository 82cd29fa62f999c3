// Coldstart shows what the first call of a process costs, and how much of that
// Transport.Warm saves: the name, TCP and TLS. Server, DNS server and client are on
// a simulated network in this process, with round trips of 0.5 ms and of 30 ms.
//
//	go run ./examples/coldstart
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/netsim"
)

// url has the host name in the certificate of package httptest.
const url = "https://example.com/"

func main() {
	log.SetFlags(0)
	network, trust, stop, err := serve()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	fmt.Println("round trip    first call    first after Warm    a warm call    first / warm    after Warm / warm")
	for _, test := range []struct {
		rtt     time.Duration
		clients int
	}{{500 * time.Microsecond, 25}, {30 * time.Millisecond, 7}} {
		for _, server := range []string{"web", "nameserver"} {
			network.Set("client", server, netsim.Profile{Delay: netsim.Constant(test.rtt / 2)})
		}
		var cold, warmed, warm []time.Duration
		for range test.clients {
			for _, first := range []*[]time.Duration{&cold, &warmed} {
				client, transport, shut := connect(network.Host("client"), trust)
				if first == &warmed {
					if err := transport.Warm(context.Background(), 1, url); err != nil { // opens the connection
						log.Fatal(err)
					}
				}
				*first = append(*first, call(client))
				warm = append(warm, call(client), call(client))
				shut()
			}
		}
		c, f, w := median(cold), median(warmed), median(warm)
		fmt.Printf("%7.1f ms %10.2f ms %16.2f ms %11.2f ms %13.1f × %17.2f ×\n", ms(test.rtt), ms(c), ms(f), ms(w),
			float64(c)/float64(w), float64(f)/float64(w))
	}
	fmt.Println("\nmedians; every client is new, with an empty DNS cache")
}

// connect returns a client without connections and with an empty DNS cache.
func connect(at *netsim.Host, trust *http.Transport) (*http.Client, *hedge.Transport, func()) {
	resolver := &dnshedge.Client{
		Dialer: at, Upstreams: []dnshedge.Upstream{{Addr: "nameserver:53"}}, Cache: new(dnshedge.Cache),
	}
	base := &http.Transport{
		TLSClientConfig:   trust.TLSClientConfig.Clone(),
		ForceAttemptHTTP2: true,
		// Where the network is not simulated: (&net.Dialer{Resolver: resolver.Resolver()}).DialContext
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			ips, err := resolver.LookupNetIP(ctx, "ip4", host)
			if err != nil {
				return nil, err
			}
			return at.DialContext(ctx, network, net.JoinHostPort(ips[0].String(), port))
		},
	}
	transport := hedge.New(base)
	return &http.Client{Transport: transport}, transport, func() {
		transport.CloseIdleConnections()
		resolver.Close()
	}
}

// call returns how long a call took.
func call(client *http.Client) time.Duration {
	start := time.Now()
	resp, err := client.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil {
		log.Fatal(err)
	}
	return time.Since(start)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// serve starts a web server and a DNS server that has its address, and returns a transport that trusts the web server.
func serve() (network *netsim.Network, trust *http.Transport, stop func(), err error) {
	network, err = netsim.NewMemory(1, "client", "web", "nameserver")
	if err != nil {
		return nil, nil, nil, err
	}
	network.EnablePreciseTiming()
	listener, err := network.Host("web").Listen("tcp", ":443")
	if err != nil {
		return nil, nil, nil, err
	}
	socket, err := network.Host("nameserver").ListenPacket("udp", ":53")
	if err != nil {
		return nil, nil, nil, err
	}
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	site.Listener.Close()
	site.Listener, site.EnableHTTP2 = listener, true
	site.StartTLS()
	started := make(chan struct{})
	names := &dns.Server{PacketConn: socket, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   network.Host("web").Addr().AsSlice(),
			}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = names.ActivateAndServe() }()
	<-started
	return network, site.Client().Transport.(*http.Transport), func() {
		_ = names.Shutdown()
		site.Close()
		_ = network.Close()
	}, nil
}
