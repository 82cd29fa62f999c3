// Dns looks up names through a hedged, caching client. It prints their addresses and
// TTLs, and which server answered.
//
//	go run ./examples/dns                                  # two servers of its own
//	go run ./examples/dns -upstream 192.0.2.53 example.com # a real one; repeat -upstream for more
//
// Without -upstream it starts two servers on loopback, one of which loses every
// thirtieth query, and asks them for a hundred names.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
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
	names := flag.Args()

	if len(upstreams) == 0 {
		for _, loss := range []float64{1.0 / 30, 0} {
			at, stop, err := serve(loss)
			if err != nil {
				log.Fatal(err)
			}
			defer stop()
			upstreams = append(upstreams, dnshedge.Upstream{Addr: at})
		}
		if len(names) == 0 {
			for i := range 100 {
				names = append(names, fmt.Sprintf("host-%d.example", i))
			}
			names = append(names, names[0]) // from the cache
		}
	}

	var winner atomic.Value
	client := &dnshedge.Client{
		Upstreams: upstreams,
		Cache:     new(dnshedge.Cache),
		Trace: &dnshedge.Trace{Answer: func(_ context.Context, a dnshedge.AnswerInfo) {
			switch {
			case a.Source != dnshedge.FromServer:
				winner.Store(string(a.Source))
			case a.HedgeWon:
				winner.Store("hedge to " + a.Upstream.String())
			default:
				winner.Store(a.Upstream.String())
			}
		}},
	}
	defer client.Close()

	for _, name := range names {
		start := time.Now()
		addrs, err := client.LookupAddrs(context.Background(), name)
		took := round(time.Since(start))
		if err != nil {
			fmt.Printf("%-20s %8v  %v\n", name, took, err)
			continue
		}
		for _, a := range addrs {
			fmt.Printf("%-20s %8v  %-16v TTL %-6v %v\n", name, took, a.Addr, a.TTL, winner.Load())
		}
	}
	s := client.Stats()
	fmt.Printf("\n%d questions, %d queries on the wire, %d hedges of which %d won, %d from the cache\n",
		s.Queries, s.Wire, s.Hedges, s.HedgeWins, s.Hits)
	for _, u := range s.Upstreams {
		fmt.Printf("%v: round trip %v, half of the answers within %v, hedged after %v\n",
			u.Upstream, round(u.SRTT), round(u.P50), round(max(u.LossDelay, u.SlowDelay)))
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// serve starts a server on loopback that takes 3 ms and loses a share of its queries.
func serve(loss float64) (address string, stop func(), err error) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if rand.Float64() < loss {
			return
		}
		time.Sleep(3 * time.Millisecond)
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
				A:   net.IPv4(192, 0, 2, byte(1+rand.IntN(250))),
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
