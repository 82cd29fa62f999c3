package lookup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/internal/doubles"
)

type exchangeFunc func(m *dns.Msg) *dns.Msg

func (f exchangeFunc) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	return f(m), 0, nil
}

// Of a chain of long names, each record was compared with each name in turn.
func TestR9AddressesAtTheEndOfAChainCostLittle(t *testing.T) {
	host := func(i int) string { return fmt.Sprintf("%s%02d.example.", strings.Repeat("A.", 120), i) }
	answer := func(m *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(m)
		for i := range 15 {
			r.Answer = append(r.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: host(i), Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: host(i + 1)})
		}
		for i := range 3500 {
			r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: host(15), Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, byte(i >> 8), byte(i)}})
		}
		return r
	}
	most, least := 10*time.Millisecond, time.Hour
	if doubles.RaceEnabled {
		most *= 4
	}
	for tries := 0; tries < 300 && least > most; tries++ {
		r := answer(new(dns.Msg).SetQuestion(host(0), dns.TypeA))
		start := time.Now()
		addrs, err := lookup.Addrs(t.Context(), exchangeFunc(func(*dns.Msg) *dns.Msg { return r }), strings.ToLower(host(0)), dns.TypeA)
		least = min(least, time.Since(start))
		require.NoError(t, err)
		require.Len(t, addrs, 3500)
	}
	assert.LessOrEqual(t, least, most)
}
