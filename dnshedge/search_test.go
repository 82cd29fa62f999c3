package dnshedge_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// An addressRecorder is a Dialer that records the addresses and connects to none.
type addressRecorder struct{ addresses []string }

var errRecorded = errors.New("recorded")

func (d *addressRecorder) DialContext(_ context.Context, _, address string) (net.Conn, error) {
	d.addresses = append(d.addresses, address)
	return nil, errRecorded
}

func TestCompleteNamesAddsFinalDotToNamesWithDots(t *testing.T) {
	recorder := new(addressRecorder)
	d := dnshedge.CompleteNames(recorder)
	for address, want := range map[string]string{
		"api.example.com:443":  "api.example.com.:443",
		"api.example.com.:443": "api.example.com.:443",
		"api:443":              "api:443",
		"192.0.2.1:443":        "192.0.2.1:443",
		"[2001:db8::1]:443":    "[2001:db8::1]:443",
		"[fe80::1%eth.0]:443":  "[fe80::1%eth.0]:443",
		"api.example.com":      "api.example.com",
		":443":                 ":443",
	} {
		recorder.addresses = nil
		_, err := d.DialContext(t.Context(), "tcp", address)
		require.ErrorIs(t, err, errRecorded)
		assert.Equal(t, []string{want}, recorder.addresses)
	}
}

// inCluster answers as a DNS server outside of a cluster: no name below cluster.local exists.
func inCluster(q dnstest.Query) dnstest.Reply {
	switch name := strings.ToLower(q.Question[0].Name); {
	case dns.IsSubDomain("cluster.local.", name), dns.IsSubDomain("none.example.", name):
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeNameError)}
	case q.Question[0].Qtype == dns.TypeA:
		return dnstest.Reply{Msg: dnstest.Answer(q, "A 127.0.0.1")}
	}
	return dnstest.Reply{Msg: dnstest.Answer(q)}
}

func TestCompleteNamesLeavesPathsAlone(t *testing.T) {
	recorder := new(addressRecorder)
	_, err := dnshedge.CompleteNames(recorder).DialContext(t.Context(), "unix", "/home/j.doe/app:1.sock")
	require.ErrorIs(t, err, errRecorded)
	assert.Equal(t, []string{"/home/j.doe/app:1.sock"}, recorder.addresses)
}

func TestStatsCountSearchMissesOfResolver(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "resolv.conf"), "domain none.example\nsearch . shop.svc.Cluster.local cluster.local. a..b\noptions ndots:5\n")
	bubble(t, func(l *lab) {
		l.serve("a", inCluster)
		c := l.client(&dnshedge.Client{ResolvConf: path, Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		ask := func(name string, want int) {
			t.Helper()
			k := l.dial(c, background)
			before := c.Stats().SearchMisses
			_, err := k.Write(framed(t, question(name, dns.TypeA)))
			require.NoError(t, err)
			readFramed(t, k)
			assert.EqualValues(t, want, c.Stats().SearchMisses-before, name)
		}
		ask("api.example.com.shop.svc.cluster.local.", 1)
		ask("API.example.com.shop.svc.CLUSTER.local.", 1) // from the cache
		ask("api.example.com.cluster.local.", 1)
		ask("api.example.com.", 0)
		ask("cluster.local.", 0)
		ask("api.none.example.", 0) // the last line with search domains replaces those before
		_, _, err := c.Exchange(question("x.cluster.local.", dns.TypeA), "")
		require.NoError(t, err)
		assert.EqualValues(t, 3, c.Stats().SearchMisses, "it is no question of a net.Resolver")
	})
}
