package quic

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// The option edns-tcp-keepalive is forbidden (RFC 9250 §5.5.2), wherever it is.
func TestMessagesHaveNoKeepalive(t *testing.T) {
	keepalive := &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: 11, Length: 2}
	unknown := &dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte{0, dns.EDNS0TCPKEEPALIVE, 0, 0}}
	for _, test := range []struct {
		options []dns.EDNS0
		want    error
	}{
		{[]dns.EDNS0{keepalive}, errKeepalive},
		{[]dns.EDNS0{unknown, keepalive}, errKeepalive},
		{[]dns.EDNS0{unknown}, nil},
	} {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA).SetEdns0(1232, false)
		m.Id, m.IsEdns0().Option = 0, test.options
		m.Answer = []dns.RR{&dns.NS{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeNS, Class: dns.ClassINET}, Ns: "ns.example."}}
		m.Compress = true
		b, err := m.Pack()
		require.NoError(t, err)
		assert.Equal(t, test.want, checkMessage(b))
		for n := headerLen; n < len(b); n++ {
			err := checkMessage(b[:n])
			assert.True(t, err == nil || errors.Is(err, test.want), "%d bytes: %v", n, err)
		}
	}
}

// To write out the names of a HIP record takes time in proportion to their length, and any client can send one in each query.
func TestMessageIsCheckedCheaply(t *testing.T) {
	m := []byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1}
	m = append(m, strings.Repeat("\x01a", 127)+"\x00\x00\x01\x00\x01"+"\xc0\x0c\x00\x37\x00\x01\x00\x00\x0b\x00"...)
	n := (65000 - len(m)) &^ 1
	m = append(binary.BigEndian.AppendUint16(m, uint16(4+n)), 0, 2, 0, 0)
	m = append(m, strings.Repeat("\xc0\x0c", n/2)...)
	doubles.AssertMaxDuration(t, 2*time.Millisecond, func() { assert.NoError(t, checkMessage(m)) })
}
