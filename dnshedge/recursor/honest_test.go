package recursor_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// useP384 gives a signed zone a P-384 key.
func (w *testNetwork) useP384(t *testing.T, name string) {
	priv, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	b, err := priv.PublicKey.Bytes()
	require.NoError(t, err)
	z := w.zone(name)
	z.signer.priv = priv
	z.signer.key = &dns.DNSKEY{Hdr: z.signer.key.Hdr, Flags: 257, Protocol: 3, Algorithm: dns.ECDSAP384SHA384, PublicKey: base64.StdEncoding.EncodeToString(b[1:])}
	z.sets[name][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
	z.sign()
	ds := z.signer.key.ToDS(dns.SHA384)
	ds.Hdr.Ttl = 3600
	w.zone(".").sets[name][dns.TypeDS] = []dns.RR{ds}
}

// TestResolverValidatesElevenAliasesOfP384Zones has valid zones, each with one key, one signature for each RRset,
// and a wildcard.
func TestResolverValidatesElevenAliasesOfP384Zones(t *testing.T) {
	const zones = 12
	var text strings.Builder
	text.WriteString(". served 198.41.0.4\n")
	for i := range zones {
		fmt.Fprintf(&text, "z%d. delegated 192.0.2.%d\n", i, i+1)
		if i < zones-1 {
			fmt.Fprintf(&text, "  * CNAME x.z%d.\n", i+1)
		}
	}
	bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() {
			for i := range zones {
				w.useP384(t, fmt.Sprintf("z%d.", i))
			}
			w.zone(".").sign()
		})
		assert.Equal(t, "secure", w.security(newValidatingResolver(w), "x.z0. A"))
	})
}

// TestResolverKeepsProofsAcrossQuestionsAndReferrals requires that neither questions within a proven range nor
// referrals to unsigned zones end a cached proof (RFC 8198).
func TestResolverKeepsProofsAcrossQuestionsAndReferrals(t *testing.T) {
	const zones = 80
	var text strings.Builder
	var unsigned []string
	text.WriteString(". served 198.41.0.4\ntld. delegated 192.0.2.1\n")
	for i := range zones {
		fmt.Fprintf(&text, "  n%02d A 192.0.2.80\n", i)
	}
	for i := range zones {
		fmt.Fprintf(&text, "d%02d.tld. delegated 192.0.3.1\n  www A 192.0.2.80\n", i)
		unsigned = append(unsigned, fmt.Sprintf("d%02d.tld.", i))
	}
	bubble(t, text.String(), func(t *testing.T, w *testNetwork) {
		w.sign(unsigned...)
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "zz.tld. A"))
		for i := range zones {
			require.Equal(t, "insecure", w.security(r, fmt.Sprintf("www.d%02d.tld. A", i)))
			require.Equal(t, "secure", w.security(r, fmt.Sprintf("n%02d-x.tld. A", i)))
		}
		n := w.countQueries("192.0.2.1")
		for i := range 200 {
			require.Equal(t, "secure", w.security(r, fmt.Sprintf("n%02d-y%d.tld. A", i%zones, i)))
			require.Equal(t, "secure", w.security(r, fmt.Sprintf("zz%d.tld. A", i)))
		}
		assert.Equal(t, n, w.countQueries("192.0.2.1"))
	})
}

// TestResolverExtendsSharedQueryForLaterDeadline has a client's question join a server name lookup, which waits for
// slow servers for a shorter time.
func TestResolverExtendsSharedQueryForLaterDeadline(t *testing.T) {
	for _, ahead := range []time.Duration{0, 500 * time.Millisecond, 2 * time.Second} {
		bubble(t, `
. served 198.41.0.4
slow. delegated 192.0.2.1
  ns A 192.0.2.9
  ns AAAA 2001:db8::9
other. served 192.0.2.9
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
			w.withLock(func() { w.zone(".").put(record("other. NS ns.slow.")) })
			w.updateServers("192.0.2.1", func(s *server) { s.rtt = 4000 * ms })
			r := w.resolver(noMinimise)
			w.ask(r, "slow. NS")
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = w.exchange(t.Context(), r, "www.other. A")
			}()
			time.Sleep(ahead)
			assert.Equal(t, "NOERROR ns.slow. A 192.0.2.9", formatResponse(w.ask(r, "ns.slow. A")), ahead)
			<-done
		})
	}
}
