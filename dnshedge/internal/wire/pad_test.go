package wire_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func TestPadResponseFillsBlockOrMessage(t *testing.T) {
	before := []byte{1, 2} // the length of a message over a stream
	for _, size := range []int{60, 463, 464, 465, 468, 469, 932, 65000, 65519, 65520, 65530, 65531, 65532, 65535} {
		m := worstQuestion()
		m.Response = true
		b := append(before[:2:2], pack(t, m)...)
		if left := size - len(b) + 2; left > 0 { // add an option that fills the message
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: make([]byte, max(left-4, 0))}}
			b = append(before[:2:2], pack(t, m)...)
		}
		was := len(b) - 2
		b = wire.PadResponse(b, 2)
		got := len(b) - 2
		assert.Equal(t, before, b[:2])
		switch {
		case was > wire.MaxMsg-4:
			assert.Equal(t, was, got, "there is no room for the option")
		case got != wire.MaxMsg:
			assert.Zero(t, got%468, "%d bytes became %d", was, got)
			assert.Less(t, got-was, 468+4)
		}
		padded := new(dns.Msg)
		require.NoError(t, padded.Unpack(b[2:]))
		require.NotNil(t, padded.IsEdns0())
	}
	m := question("x.example.", dns.TypeA)
	assert.Equal(t, pack(t, m), wire.PadResponse(pack(t, m), 0), "without EDNS")
}
