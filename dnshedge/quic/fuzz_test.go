package quic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/miekg/dns"
)

// FuzzQUICStream reads a stream as a server does. What it accepts is a frame, and memory is reserved only for bytes that
// arrive.
func FuzzQUICStream(f *testing.F) {
	m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
	m.Id = 0
	plain, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	m.SetEdns0(1232, true)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
	keepalive, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(appendFrame(nil, plain))
	f.Add(appendFrame(nil, keepalive))
	f.Add(appendFrame(appendFrame(nil, plain), plain))
	f.Add(appendFrame(nil, make([]byte, 3000))[:2000])
	f.Add([]byte{0xff, 0xff, 0})
	f.Add([]byte{0, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, reserved := bytes.NewReader(b), 0
		m, err := readMessage(r, func(n int) error {
			reserved += n
			return nil
		})
		if reserved > 2*len(b)+firstRead {
			t.Fatalf("%d bytes reserved for %d", reserved, len(b))
		}
		if err == nil {
			err = expectEOF(r)
		}
		if err == nil && (len(m) != len(b)-2 || int(binary.BigEndian.Uint16(b)) != len(m) || !bytes.Equal(m, b[2:])) {
			t.Fatalf("%x was read from %x", m, b)
		}
		if err != nil {
			if !isViolation(err) {
				t.Fatal(err)
			}
			return
		}
		if checkMessage(m) == nil && m[0]|m[1] != 0 {
			t.Fatal("a message with an ID was accepted")
		}
	})
}
