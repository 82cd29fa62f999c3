package lookup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/internal/doubles"
)

type exchangeFunc func(m *dns.Msg) *dns.Msg

func (f exchangeFunc) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	return f(m), 0, nil
}

// In a chain of long names, comparing each record with each name takes quadratic time.
func TestLookupAddrsFollowsChainCheaply(t *testing.T) {
	host := func(i int) string { return fmt.Sprintf("%s%02d.example.", strings.Repeat("A.", 120), i) }
	r := new(dns.Msg).SetQuestion(host(0), dns.TypeA)
	r.Response = true
	for i := range 15 {
		r.Answer = append(r.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: host(i), Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: host(i + 1)})
	}
	for i := range 3500 {
		r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: host(15), Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, byte(i >> 8), byte(i)}})
	}
	doubles.AssertMaxDuration(t, 10*time.Millisecond, func() {
		addrs, err := lookup.LookupAddrs(t.Context(), exchangeFunc(func(*dns.Msg) *dns.Msg { return r }), strings.ToLower(host(0)), dns.TypeA)
		require.NoError(t, err)
		require.Len(t, addrs, 3500)
	})
}
