package nameservers

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
)

// BenchmarkAsk queries a server on this machine for a referral, over kernel sockets. The time includes the server.
func BenchmarkAsk(b *testing.B) {
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(b, err)
	defer pc.Close()
	m := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
	m.Response, m.Compress = true, true
	for _, s := range []string{"a", "b", "c", "d"} {
		for section, record := range map[*[]dns.RR]string{&m.Ns: "example.com. NS ns-" + s + ".example.net.", &m.Extra: "ns-" + s + ".example.net. A 192.0.2.1"} {
			rr, err := dns.NewRR(record)
			require.NoError(b, err)
			*section = append(*section, rr)
		}
	}
	m.SetEdns0(1232, false)
	response, err := m.Pack()
	require.NoError(b, err)
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			copy(response, buf[:2]) // the ID
			_, _ = pc.WriteToUDPAddrPort(response, from)
		}
	}()
	f := NewPool(Config{})
	defer f.Close()
	t := newTask(netip.MustParseAddrPort(pc.LocalAddr().String()))
	t.PrivateOK = true
	b.ReportAllocs()
	for b.Loop() {
		_, err := f.QueryServers(context.Background(), t)
		require.NoError(b, err)
	}
}
