package quic_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// BenchmarkLossyPath compares DNS over QUIC with DNS over TLS for one Client: a question every 20 or 2 ms to a server that is
// 20 ms away, with and without lost packets and hedges. The protocols take turns at each question. It needs root on Linux.
func BenchmarkLossyPath(b *testing.B) {
	for _, interval := range []time.Duration{20 * time.Millisecond, 2 * time.Millisecond} {
		for _, loss := range []float64{0, .02} {
			for _, hedging := range []bool{false, true} {
				b.Run(fmt.Sprintf("every=%v/loss=%v/hedging=%v", interval, loss, hedging), func(b *testing.B) {
					benchmarkLossyPath(b, interval, loss, hedging)
				})
			}
		}
	}
}

func benchmarkLossyPath(b *testing.B, interval time.Duration, loss float64, hedging bool) {
	n, err := netsim.NewKernel(uint64(time.Now().UnixNano()), "client", "server")
	if errors.Is(err, netsim.ErrUnsupported) {
		b.Skip(err)
	}
	require.NoError(b, err)
	defer n.Close()
	n.EnablePreciseTiming()
	n.Set("client", "server", netsim.Profile{Delay: netsim.Constant(10 * time.Millisecond), Loss: loss})
	s := &dnstest.Server{Handler: answer}
	defer s.Close()
	ln, err := n.Host("server").Listen("tcp", ":853")
	require.NoError(b, err)
	s.ServeTLS(ln)
	socket, err := n.Host("server").ListenPacket("udp", ":853")
	require.NoError(b, err)
	t := &quicgo.Transport{Conn: socket}
	defer t.Close()
	l, err := t.Listen(serverConfig("quic"), nil)
	require.NoError(b, err)
	serveQUIC(l, "quic", func(_ *quicgo.Conn, query []byte, to responseStream) {
		if len(query) > 2 {
			to.respond(reply(b, query), true)
		}
	})

	protocols := []string{"tls", "quic"}
	took := make([][]time.Duration, len(protocols))
	var mu sync.Mutex
	var wg sync.WaitGroup
	var clients []*dnshedge.Client
	for _, protocol := range protocols {
		c := newClient(b, protocol, net.JoinHostPort(n.Host("server").Addr().String(), "853"))
		c.Dialer, c.Hedge.Off = n.Host("client"), !hedging
		for i := range 50 {
			ask(b, c, fmt.Sprintf("warmup%d.example.", i))
		}
		clients = append(clients, c)
	}
	b.ResetTimer()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := range b.N {
		<-tick.C
		for j, c := range clients {
			wg.Go(func() {
				time.Sleep(time.Duration(j) * interval / 2)
				start := time.Now()
				if _, _, err := c.Exchange(new(dns.Msg).SetQuestion(fmt.Sprintf("q%d.example.", i), dns.TypeA), ""); err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				took[j] = append(took[j], time.Since(start))
			})
		}
	}
	wg.Wait()
	b.ReportMetric(0, "ns/op")
	quantiles := map[string]float64{"p50": .5, "p99": .99}
	for name, q := range quantiles {
		var at [2]float64
		for j, protocol := range protocols {
			slices.Sort(took[j])
			at[j] = took[j][int(q*float64(len(took[j])-1))].Seconds() * 1000
			b.ReportMetric(at[j], protocol+"-"+name+"-ms")
		}
		b.ReportMetric(at[1]/at[0], "quic/tls-"+name)
	}
}
