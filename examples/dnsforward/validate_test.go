package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// signedUpstream starts a resolver for a signed zone example., which sets AD in every answer. The signature of
// a.example. fits nothing.
func signedUpstream(t *testing.T, n *internet) string {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q)
		m.AuthenticatedData = true
		switch name, qtype := strings.ToLower(q.Question[0].Name), q.Question[0].Qtype; {
		case qtype == dns.TypeDNSKEY:
			m.Answer = n.ownKey(name)
		case qtype == dns.TypeDS && n.keys[name] == nil: // nothing
		case qtype == dns.TypeDS:
			ds := n.keys[name].ToDS(dns.SHA256)
			ds.Hdr = dns.RR_Header{Name: name, Rrtype: dns.TypeDS, Class: dns.ClassINET, Ttl: 3600}
			m.Answer = n.signed(".", ds)
		default:
			m.Answer = n.signed("example.", record(t, name+" 3600 A 192.0.2.1"))
		}
		return dnstest.Reply{Msg: m}
	}}
	s.ServeUDP(pc)
	t.Cleanup(s.Close)
	return pc.LocalAddr().String()
}

func TestValidateFlagChecksUpstreams(t *testing.T) {
	world := &internet{keys: nil}
	world.keys = newInternet(t, true).keys
	anchors := filepath.Join(t.TempDir(), "root.key")
	require.NoError(t, os.WriteFile(anchors, []byte(world.keys["."].ToDS(dns.SHA256).String()+"\n"), 0o600))
	for _, insecure := range []bool{false, true} {
		args := []string{"-validate", "-anchors", anchors, "-upstream", signedUpstream(t, world), "-metrics", doubles.FreeAddress(t)}
		if insecure {
			args = append(args, "-insecure", "example")
		}
		o, err := parsed(args...)
		require.NoError(t, err)
		o.Client.Exchanger.(*dnssec.Validator).Logger = nil
		begin(t, o)
		r := ask(t, o, "b.example.")
		assert.Len(t, r.Answer, 2, "%v", r)
		assert.Equal(t, !insecure, r.AuthenticatedData)
		r = ask(t, o, "a.example.")
		assert.False(t, r.AuthenticatedData)
		if insecure {
			assert.Len(t, r.Answer, 2, "%v", r)
			continue
		}
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		require.Len(t, r.IsEdns0().Option, 1, "%v", r)
		assert.Equal(t, dns.ExtendedErrorCodeDNSBogus, r.IsEdns0().Option[0].(*dns.EDNS0_EDE).InfoCode)

		for path, lines := range map[string][]string{
			"/metrics":     {"dnsforward_validator_secure_total 1\n", "dnsforward_validator_bogus_total 1\n", "dnsforward_questions_total 2\n", "dnsforward_upstream_queries_total{upstream="},
			"/debug/hedge": {"DNSSEC Bogus"},
		} {
			body := page(t, o, path)
			for _, line := range lines {
				assert.Contains(t, body, line)
			}
			assert.NotContains(t, body, "dnsforward_queries_total 0\n")
		}
		var report strings.Builder
		forward.WriteReport(&report, o.Client)
		assert.Contains(t, report.String(), "  secure 1  insecure 0  bogus 1  ")
	}
}
