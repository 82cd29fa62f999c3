package recursor_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// BenchmarkColdName resolves names that are not cached, each in a zone of its own, over kernel sockets on this machine. The
// servers of the zones above are cached, so that each name needs two queries: for the referral and for the answer. The
// time includes the servers.
func BenchmarkColdName(b *testing.B) {
	d := benchServers{}
	for addr, respond := range map[string]func(b, owner []byte) []byte{
		"192.0.2.1:53": func(b, owner []byte) []byte { return appendReferral(b, owner, 2) },
		"192.0.2.2:53": func(b, owner []byte) []byte { return appendReferral(b, owner, 3) },
		"192.0.2.3:53": func(b, owner []byte) []byte {
			b[7] = 1
			return appendRecord(b, owner, dns.TypeA, []byte{192, 0, 2, 80})
		},
	} {
		d[addr] = serveBench(b, respond)
	}
	r := &recursor.Resolver{Hints: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Dialer: d, NoIPv6: true, PrivateOK: true, Trust: dnssec.Trust{Off: true}}
	defer r.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m, _, err := r.ExchangeContext(context.Background(), new(dns.Msg).SetQuestion(fmt.Sprintf("www.z%d.example.", i), dns.TypeA), "")
		require.NoError(b, err)
		require.Len(b, m.Answer, 1)
	}
}

// benchServers has the UDP address of the server that stands for each address of a name server. It is the Dialer of
// BenchmarkColdName.
type benchServers map[string]string

func (d benchServers) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, d[address])
}

// serveBench starts a UDP server, and returns its address. respond appends the records of a response to a header and a
// question, and sets their counts. owner is a compression pointer to the name of the question.
func serveBench(b *testing.B, respond func(b, owner []byte) []byte) (addr string) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { _ = pc.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			end := 12
			for buf[end] != 0 {
				end += 1 + int(buf[end])
			}
			r := buf[: end+5 : end+5]
			binary.BigEndian.PutUint16(r[2:], 0x8400)
			copy(r[6:12], make([]byte, 6))
			_, _ = pc.WriteTo(respond(r, []byte{0xc0, 12}), from)
		}
	}()
	return pc.LocalAddr().String()
}

// appendReferral appends the records of a referral to b, a header and a question. The zone has the name of the question, and
// two servers with the address 192.0.2.n.
func appendReferral(b, owner []byte, n byte) []byte {
	binary.BigEndian.PutUint16(b[2:], 0x8000)
	b[9], b[11] = 2, 2
	for _, label := range []byte{'a', 'b'} {
		b = appendRecord(b, owner, dns.TypeNS, append([]byte{1, label}, owner...))
	}
	for _, label := range []byte{'a', 'b'} {
		b = appendRecord(b, append([]byte{1, label}, owner...), dns.TypeA, []byte{192, 0, 2, n})
	}
	return b
}

// appendRecord appends a record of class IN with a TTL of an hour.
func appendRecord(b, owner []byte, typ uint16, data []byte) []byte {
	b = append(b, owner...)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint16(b, dns.ClassINET)
	b = binary.BigEndian.AppendUint32(b, 3600)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}
