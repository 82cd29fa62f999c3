// Dns looks up names through a hedged, caching client.
//
//	go run ./examples/dns                                  # two servers of its own
//	go run ./examples/dns -upstream 192.0.2.53 example.com # a real one; repeat -upstream for more
//
// Without -upstream it starts two servers on loopback, one of which loses every thirtieth query, and asks them for
// 400 names without hedging, and for 400 with it. Of names that are given it prints the addresses, their TTLs, and who
// answered.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
)

func main() {
	log.SetFlags(0)
	var upstreams []dnshedge.Upstream
	flag.Func("upstream", "`server` to ask: an address, or a URL of udp, tcp, tls or https", func(s string) error {
		u, err := dnshedge.ParseUpstream(s)
		upstreams = append(upstreams, u)
		return err
	})
	flag.Parse()

	if len(upstreams) == 0 {
		for _, lost := range []int64{30, 0} {
			at, stop, err := serve(lost)
			if err != nil {
				log.Fatal(err)
			}
			defer stop()
			upstreams = append(upstreams, dnshedge.Upstream{Addr: at})
		}
		if flag.NArg() == 0 {
			fmt.Println("              median      p99   slowest   queries   hedges, won")
			compare("no hedging", upstreams, dnshedge.Hedge{Off: true})
			compare("hedged", upstreams, dnshedge.Hedge{})
			return
		}
	}
	lookup(upstreams, flag.Args())
}

// compare asks for 400 names, once it has learned from a hundred how long the servers take, and prints how long that took.
func compare(title string, upstreams []dnshedge.Upstream, hedge dnshedge.Hedge) {
	client := &dnshedge.Client{Upstreams: upstreams, Hedge: hedge}
	defer client.Close()
	const learned, asked = 100, 400
	var took []time.Duration
	for i := range learned + asked {
		start := time.Now()
		if _, err := client.LookupAddrs(context.Background(), fmt.Sprintf("host-%d.example", i)); err != nil {
			log.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	took = took[learned:]
	slices.Sort(took)
	s := client.Stats()
	fmt.Printf("%-10s %7.1f ms %5.1f ms %6.1f ms %9d %8d, %3d\n",
		title, ms(took[asked/2]), ms(took[asked*99/100]), ms(took[asked-1]), s.Wire, s.Hedges, s.HedgeWins)
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// lookup prints the addresses of names, each asked for twice: the second answer comes from the cache.
func lookup(upstreams []dnshedge.Upstream, names []string) {
	var source atomic.Value
	client := &dnshedge.Client{
		Upstreams: upstreams,
		Cache:     new(dnshedge.Cache),
		Trace: &dnshedge.Trace{Answer: func(_ context.Context, a dnshedge.AnswerInfo) {
			switch {
			case a.Source != dnshedge.FromServer:
				source.Store(string(a.Source))
			case a.HedgeWon:
				source.Store("hedge to " + a.Upstream.String())
			default:
				source.Store(a.Upstream.String())
			}
		}},
	}
	defer client.Close()
	for _, name := range append(names, names...) {
		start := time.Now()
		addrs, err := client.LookupAddrs(context.Background(), name)
		took := time.Since(start).Round(10 * time.Microsecond)
		if err != nil {
			fmt.Printf("%-20s %8v  %v\n", name, took, err)
		}
		for _, a := range addrs {
			fmt.Printf("%-20s %8v  %-16v TTL %-6v %v\n", name, took, a.Addr, a.TTL, source.Load())
		}
	}
}

// serve starts a server on loopback that takes 3 ms. Of every lost queries it loses one; zero: none.
func serve(lost int64) (address string, stop func(), err error) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var queries atomic.Int64
	started := make(chan struct{})
	server := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if n := queries.Add(1); lost > 0 && n%lost == 0 {
			return
		}
		time.Sleep(3 * time.Millisecond)
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
				A:   net.IPv4(192, 0, 2, 7),
			}}
		} else {
			m.Ns = []dns.RR{&dns.SOA{
				Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 300},
				Ns:  "ns.example.", Mbox: "hostmaster.example.", Minttl: 60,
			}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	<-started
	return pc.LocalAddr().String(), func() { _ = server.Shutdown() }, nil
}
