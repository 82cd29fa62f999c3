package dnshedge_test

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// An error response of a Server has an OPT record if the message has one (RFC 6891 §6.1.1).
func TestServerRefusesWithOPTIfQueryHasOPT(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}}
	defer c.Close()
	s := &dnshedge.Server{Client: c}
	defer s.Shutdown(t.Context())
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	go s.ServePacket(pc)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go s.Serve(ln)

	for name, row := range map[string]struct {
		change func(m *dns.Msg)
		rcode  int
	}{
		"notify":            {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"update":            {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"status, two names": {func(m *dns.Msg) { m.Opcode, m.Question = dns.OpcodeStatus, append(m.Question, m.Question...) }, dns.RcodeNotImplemented},
		"no question":       {func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		"two questions":     {func(m *dns.Msg) { m.Question = append(m.Question, m.Question...) }, dns.RcodeFormatError},
	} {
		for _, edns := range []string{"", "OPT", "OPT with DO"} {
			m := question("x.example.", dns.TypeA)
			row.change(m)
			if edns != "" {
				m.SetEdns0(4096, edns == "OPT with DO")
			}
			for network, address := range map[string]string{"udp": pc.LocalAddr().String(), "tcp": ln.Addr().String()} {
				r, _, err := (&dns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(m, address)
				require.NoError(t, err, "%s %s %s", name, edns, network)
				assert.Equal(t, row.rcode, r.Rcode, "%s %s %s", name, edns, network)
				opt := r.IsEdns0()
				if assert.Equal(t, edns != "", opt != nil, "%s %s %s", name, edns, network) && opt != nil {
					assert.EqualValues(t, 1232, opt.UDPSize())
					assert.Equal(t, edns == "OPT with DO", opt.Do())
				}
			}
		}
	}
}
