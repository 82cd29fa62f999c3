package main

import (
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// signedUpstream starts a resolver for a signed zone example., which sets AD in every answer. The signature of
// a.example. fits nothing.
func signedUpstream(t *testing.T, n *internet) dnshedge.Upstream {
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
	return dnshedge.Upstream{Addr: pc.LocalAddr().String()}
}

func TestValidateFlagChecksUpstreams(t *testing.T) {
	world := &internet{keys: nil}
	world.keys = newInternet(t, true).keys
	anchors := filepath.Join(t.TempDir(), "root.key")
	require.NoError(t, os.WriteFile(anchors, []byte(world.keys["."].ToDS(dns.SHA256).String()+"\n"), 0o600))
	for _, insecure := range []bool{false, true} {
		args := []string{"-validate", "-anchors", anchors}
		if insecure {
			args = append(args, "-insecure", "example")
		}
		flags, root := flag.NewFlagSet("dnsforward", flag.ContinueOnError), new(recursiveFlags)
		root.registerFlags(flags)
		require.NoError(t, flags.Parse(args))
		client := &dnshedge.Client{Cache: new(dnshedge.Cache), Upstreams: []dnshedge.Upstream{signedUpstream(t, world)}}
		resolver, err := root.newResolver(client, flags)
		require.NoError(t, err)
		require.Nil(t, resolver)
		f := &forwarder{client: client, validating: root.newValidatingClient(client), metrics: freeAddress(t)}
		require.NotNil(t, f.validating)
		f.validating.Logger = nil
		t.Cleanup(f.validating.closeBoth)
		begin(t, f)
		asked := func(name string) *dns.Msg {
			m := ask(name)
			m.SetEdns0(1232, true)
			r, err := dns.Exchange(m, f.listen[0])
			require.NoError(t, err)
			return r
		}
		r := asked("b.example.")
		assert.Len(t, r.Answer, 2, "%v", r)
		assert.Equal(t, !insecure, r.AuthenticatedData)
		r = asked("a.example.")
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
			resp, err := http.Get("http://" + f.metrics + path)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
			for _, line := range lines {
				assert.Contains(t, string(body), line)
			}
			assert.NotContains(t, string(body), "dnsforward_queries_total 0\n")
		}
		var report strings.Builder
		f.writeReport(&report)
		assert.Contains(t, report.String(), "  secure 1  insecure 0  bogus 1  ")
	}
}
