// Httpdns is an HTTP client that resolves names through a hedged, caching DNS
// client: the dialer of its transport has that client's resolver.
//
//	go run ./examples/httpdns                # a web server and a lossy DNS server of its own
//	go run ./examples/httpdns https://example.com/
//
// With a URL it asks the system's DNS servers.
package main

import (
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
)

func main() {
	log.SetFlags(0)
	resolver := &dnshedge.Client{Cache: new(dnshedge.Cache)} // the servers of /etc/resolv.conf
	defer resolver.Close()
	urls := os.Args[1:]
	if len(urls) == 0 {
		web, nameserver, stop, err := serve()
		if err != nil {
			log.Fatal(err)
		}
		defer stop()
		resolver.Upstreams = []dnshedge.Upstream{{Addr: nameserver}}
		_, port, _ := net.SplitHostPort(web)
		for i := range 20 { // each name is new to the cache
			urls = append(urls, fmt.Sprintf("http://www%d.example:%s/", i, port))
		}
	}

	dialer := &net.Dialer{Timeout: 30 * time.Second, Resolver: resolver.Resolver()}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialer.DialContext
	client := &http.Client{Transport: transport}

	for _, url := range urls {
		start := time.Now()
		resp, err := client.Get(url)
		if err != nil {
			fmt.Printf("%s: %v\n", url, err)
			continue
		}
		n, _ := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		fmt.Printf("%s  %s  %d bytes  %v\n", url, resp.Status, n, time.Since(start).Round(100*time.Microsecond))
	}
	s := resolver.Stats()
	fmt.Printf("\n%d DNS questions, %d queries, %d hedges of which %d won; without hedges, Go waits 5s for each lost packet\n",
		s.Queries, s.Wire, s.Hedges, s.HedgeWins)
}

// serve starts a web server, and a DNS server that answers every name with the web
// server's address and loses a twentieth of the queries.
func serve() (web, nameserver string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", nil, err
	}
	site := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Hello from %s\n", r.Host)
	})}
	go func() { _ = site.Serve(l) }()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return "", "", nil, err
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if rand.IntN(20) == 0 {
			return
		}
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   net.IPv4(127, 0, 0, 1),
			}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	<-started
	return l.Addr().String(), pc.LocalAddr().String(), func() { _ = server.Shutdown(); _ = site.Close() }, nil
}
