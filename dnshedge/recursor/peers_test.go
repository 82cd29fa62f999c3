package recursor_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
)

// estate is a set of random zones for real servers, with questions about them.
type estate struct {
	rand      *rand.Rand
	files     map[string]*strings.Builder // by zone
	served    [4][]string                 // zones, by server process
	questions []string
	special   []string // asked besides
}

// serverAt returns an address of a server process. Each process has two: 127.1.<process>.1 and .2.
func serverAt(process, n int) string { return fmt.Sprintf("127.1.%d.%d", process, n) }

// zone adds a zone without a delegation.
func (e *estate) zone(name string, process int) *strings.Builder {
	b := new(strings.Builder)
	fmt.Fprintf(b, "$ORIGIN %s\n$TTL 3600\n@ %d SOA ns.%s admin.%s 1 3600 600 86400 %d\n", name, 300+e.rand.IntN(3000), dot(name), dot(name), 60+e.rand.IntN(600))
	e.files[name] = b
	e.served[process] = append(e.served[process], name)
	return b
}

func dot(name string) string { return strings.TrimPrefix(name, ".") }

// addDelegatedZone adds a child zone with two servers whose names are in it.
func (e *estate) addDelegatedZone(name, parent string, process int) *strings.Builder {
	z := e.zone(name, process)
	for n := 1; n <= 2; n++ {
		both := fmt.Sprintf("%[1]s NS ns%[2]d.%[1]s\nns%[2]d.%[1]s A %[3]s\n", name, n, serverAt(process, n))
		z.WriteString(both)
		e.files[parent].WriteString(both)
	}
	return z
}

// addHostedZone adds a child zone whose servers have names in other zones.
func (e *estate) addHostedZone(name, parent string, process int) *strings.Builder {
	z := e.zone(name, process)
	for n := 1; n <= 2; n++ {
		ns := fmt.Sprintf("%s NS ns%d.process%d.net.\n", name, n, process)
		z.WriteString(ns)
		e.files[parent].WriteString(ns)
	}
	return z
}

func newEstate(seed uint64) *estate {
	e := &estate{rand: rand.New(rand.NewPCG(seed, 12)), files: make(map[string]*strings.Builder)}
	root := e.zone(".", 0)
	for n := 1; n <= 2; n++ {
		fmt.Fprintf(root, ". NS %c.root.\n%c.root. A %s\n", 'a'+n-1, 'a'+n-1, serverAt(0, n))
	}
	for _, tld := range []string{"com.", "net.", "org."} {
		e.addDelegatedZone(tld, ".", 1)
	}
	for process := 2; process <= 3; process++ {
		e.addDelegatedZone(fmt.Sprintf("process%d.net.", process), "net.", process) // its ns1 and ns2 serve other zones, too
	}
	ask := func(question string, args ...any) { e.questions = append(e.questions, fmt.Sprintf(question, args...)) }
	must := func(question string, args ...any) { e.special = append(e.special, fmt.Sprintf(question, args...)) }
	var targets []string // of aliases
	for i := range 60 {
		tld := []string{"com.", "net.", "org."}[i%3]
		name := fmt.Sprintf("zone%d.%s", i, tld)
		add := e.addDelegatedZone
		if i%2 == 1 {
			add = e.addHostedZone
		}
		process := 2 + e.rand.IntN(2)
		z := add(name, tld, process)
		w := func(format string, args ...any) { fmt.Fprintf(z, format+"\n", args...) }
		ip := func() string { return fmt.Sprintf("192.0.2.%d", 1+e.rand.IntN(250)) }
		w("@ A %s", ip())
		w("@ MX 10 mail\n@ MX 20 mail.zone%d.com.", e.rand.IntN(60))
		w("@ TXT \"v=spf1 -all\"")
		for j := range 4 {
			w("www%d A %s\nwww%d A 198.51.100.%d\nwww%d AAAA 2001:db8::%x", j, ip(), j, 1+e.rand.IntN(250), j, 1+e.rand.IntN(9999))
			ask("www%d.%s A", j, name)
			ask("www%d.%s AAAA", j, name)
			targets = append(targets, fmt.Sprintf("www%d.%s", j, name))
		}
		w("mail 0 A %s", ip()) // TTL 0
		w("_sip._tcp SRV 1 2 5060 www0")
		w("@ HTTPS 1 . alpn=h2,h3 ipv4hint=%s", ip())
		w("svc SVCB 1 www1 port=8443")
		big := strings.Repeat(fmt.Sprintf("%q ", strings.Repeat("b", 200+e.rand.IntN(50))), 6+e.rand.IntN(8))
		w("big TXT %s", big)
		w("*.wild A %s\n*.wild TXT \"wild\"\n*.walias CNAME www0\nno.wild TXT \"there\"", ip())
		w("deep.er.ent A %s", ip())
		chain := 1 + e.rand.IntN(6)
		for j := range chain {
			target := fmt.Sprintf("chain%d", j+1)
			if j == chain-1 {
				target = targets[e.rand.IntN(len(targets))]
			}
			w("chain%d CNAME %s", j, target)
		}
		w("dangling CNAME nx.%s\nabroad CNAME nx.zone%d.org.", name, e.rand.IntN(60))
		w("old DNAME new\na.b.new A %s\nmoved DNAME new.zone%d.com.", ip(), e.rand.IntN(20)*3)
		w("toolong DNAME %slong", strings.Repeat("a23456789.", 18))
		if i%3 == 0 { // a zone below, half of them on the same servers
			sub := "sub." + name
			p := process
			if i%2 == 0 {
				p = 5 - process
			}
			s := e.addDelegatedZone(sub, name, p)
			fmt.Fprintf(s, "@ A %s\nwww A %s\nalias CNAME www0.%s\n", ip(), ip(), name)
			for _, q := range []string{"www.%s A", "%s A", "%s NS", "alias.%s A", "nx.%s A", "%s SOA", "%s DS", "www.%s AAAA", "ns1.%s A"} {
				ask(q, sub)
			}
		}
		for _, q := range []string{"%s A", "%s AAAA", "%s MX", "%s TXT", "%s NS", "%s SOA", "%s HTTPS", "mail.%s A", "_sip._tcp.%s SRV", "_tcp.%s SRV", "svc.%s SVCB", "big.%s TXT",
			"any.wild.%s A", "more.any.wild.%s TXT", "no.wild.%s A", "wild.%s A", "any.wild.%s MX", "x.walias.%s A", "x.walias.%s CNAME", "ent.%s A", "er.ent.%s A", "deep.er.ent.%s A", "nx.ent.%s A",
			"chain0.%s A", "chain0.%s AAAA", "chain0.%s CNAME", "chain0.%s MX", "dangling.%s A", "abroad.%s A", "a.b.old.%s A", "old.%s A", "old.%s DNAME", "nx.old.%s A", "a.b.moved.%s A",
			strings.Repeat("b23456789.", 8) + "toolong.%s A", "nx%[1]s A", "nx.%s A", "a.b.c.nx.%s TXT", "www0.%s TXT", "%s CNAME"} {
			if e.rand.IntN(10) < 7 {
				ask(q, name)
			}
		}
	}
	for i := range 12 { // delegations that are wrong
		tld := []string{"com.", "net.", "org."}[i%3]
		name := fmt.Sprintf("broken%d.%s", i, tld)
		process := 2 + i%2
		here, there := serverAt(process, 1), serverAt(5-process, 2)
		parent := e.files[tld]
		z := e.zone(name, process)
		fmt.Fprintf(z, "@ NS ns1\nns1 A %s\n@ A 192.0.2.1\nwww A 192.0.2.2\nalias CNAME www\n", here)
		switch i / 3 {
		case 0: // one of two servers does not serve the zone
			fmt.Fprintf(parent, "%[1]s NS ns1.%[1]s\n%[1]s NS ns2.%[1]s\nns1.%[1]s A %[2]s\nns2.%[1]s A %[3]s\n", name, here, there)
		case 1: // no server has the address of one of two servers
			fmt.Fprintf(parent, "%[1]s NS ns1.%[1]s\n%[1]s NS ns2.%[1]s\nns1.%[1]s A %[2]s\nns2.%[1]s A 127.1.9.9\n", name, here)
		case 2: // no server serves the zone
			fmt.Fprintf(parent, "%[1]s NS ns2.%[1]s\nns2.%[1]s A %[2]s\n", name, there)
		case 3: // the only server's name is nowhere
			fmt.Fprintf(parent, "%[1]s NS nx.%[2]s\n", name, tld)
		}
		for _, q := range []string{"%s A", "www.%s A", "alias.%s A", "nx.%s A", "a.b.nx.%s TXT", "%s MX"} {
			must(q, name)
		}
	}
	for _, q := range []string{". NS", ". SOA", ". A", "com. NS", "com. SOA", "com. A", "nx. A", "a.b.nx. A", "a.root. A", "root. A", "nx.com. A", "ns1.com. A", "com. DS", "process2.net. NS", "ns1.process3.net. A", "ns1.process3.net. AAAA"} {
		ask("%s", q)
	}
	return e
}

// start runs a program in a network namespace until the test ends.
func start(t *testing.T, h *netsim.Host, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	var log strings.Builder
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, h.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(name, log.String())
		}
	})
}

// overWire sends a question to a server over UDP, and over TCP if the response is truncated.
func overWire(t *testing.T, h *netsim.Host, at string, m *dns.Msg) (*dns.Msg, error) {
	var r *dns.Msg
	for _, network := range []string{"udp", "tcp"} {
		conn, err := h.DialContext(t.Context(), network, at)
		if err != nil {
			return nil, err
		}
		c := &dns.Client{Net: network, Timeout: 8 * time.Second}
		r, _, err = c.ExchangeWithConn(m, &dns.Conn{Conn: conn, UDPSize: 1232})
		conn.Close()
		if err != nil {
			return nil, err
		}
		if !r.Truncated {
			break
		}
	}
	return r, nil
}

// formatOutcome returns the compared parts of a response: the RCODE, the answer section as a set, and the zone of
// the SOA record in a negative answer.
func formatOutcome(m *dns.Msg, err error) string {
	if err != nil {
		return err.Error()
	}
	s := strings.ToLower(formatResponse(m))
	for _, rr := range m.Ns {
		if rr.Header().Rrtype == dns.TypeSOA {
			s += " | " + strings.ToLower(rr.String())[:strings.IndexByte(rr.String(), '\t')]
		}
	}
	return s
}

// peersDiffer lists questions to which a peer gives another answer, with the reason.
var peersDiffer = []struct {
	peer, pattern, why string
}{
	{"unbound", ".toolong.", "unbound 1.17 says SERVFAIL, and not YXDOMAIN (RFC 6672 §2.2), when a DNAME record makes a name too long"},
}

func TestResolverAnswersLikeUnboundAndBIND(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six servers")
	}
	n, err := netsim.NewKernel(1, "here", "nowhere")
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close() })
	h := n.Host("here")
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
		return p
	}

	e := newEstate(1)
	e.rand.Shuffle(len(e.questions), func(i, j int) { e.questions[i], e.questions[j] = e.questions[j], e.questions[i] })
	require.GreaterOrEqual(t, len(e.questions), 2000)
	e.questions = append(e.questions[:2000], e.special...)
	for i := range e.served {
		var conf strings.Builder
		fmt.Fprintf(&conf, "server:\n    rundir: %q\n    listen: [ %s@53, %s@53 ]\n    tcp-workers: 1\n    udp-workers: 1\n    background-workers: 1\nlog:\n  - target: stderr\n    any: error\nzone:\n",
			filepath.Join(dir, fmt.Sprint("knot", i)), serverAt(i, 1), serverAt(i, 2))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("knot", i)), 0o755))
		for j, z := range e.served[i] {
			fmt.Fprintf(&conf, "  - domain: %q\n    file: %q\n    journal-content: none\n", z, write(fmt.Sprintf("zone%d-%d", i, j), e.files[z].String()))
		}
		start(t, h, "knotd", "-c", write(fmt.Sprintf("knot%d.conf", i), conf.String()))
	}
	hints := write("hints", fmt.Sprintf(". 3600000 NS a.root.\na.root. 3600000 A %s\n. 3600000 NS b.root.\nb.root. 3600000 A %s\n", serverAt(0, 1), serverAt(0, 2)))
	start(t, h, "unbound", "-d", "-c", write("unbound.conf", fmt.Sprintf(`
server:
  interface: 127.9.0.1@5300
  root-hints: %q
  module-config: "iterator"
  do-not-query-localhost: no
  do-ip6: no
  username: ""
  chroot: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  num-threads: 1
  discard-timeout: 0
remote-control:
  control-enable: no
`, hints, dir)))
	start(t, h, "named", "-4", "-g", "-n", "1", "-c", write("named.conf", fmt.Sprintf(`
options {
  directory %q;
  pid-file none; session-keyfile none;
  recursion yes; dnssec-validation no; empty-zones-enable no;
  listen-on port 5300 { 127.0.0.1; };
  listen-on-v6 { none; };
  allow-query { any; };
  querylog no;
};
controls { };
zone "." { type hint; file %q; };
`, dir, hints)))
	peers := map[string]string{"unbound": "127.9.0.1:5300", "BIND": "127.0.0.1:5300"}
	ready := func(at, question string) {
		require.Eventually(t, func() bool {
			m := parseQuestion(question)
			m.RecursionDesired = !strings.HasSuffix(at, ":53")
			r, err := overWire(t, h, at, m)
			return err == nil && (r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError)
		}, 30*time.Second, 50*time.Millisecond, at)
	}
	for i := range e.served {
		last := e.served[i][len(e.served[i])-1]
		ready(serverAt(i, 1)+":53", last+" SOA")
		ready(serverAt(i, 2)+":53", last+" SOA")
	}
	for _, at := range peers {
		ready(at, ". NS")
	}

	r := &recursor.Resolver{
		Trust:     dnssec.Trust{Off: true},
		Hints:     []netip.Addr{netip.MustParseAddr(serverAt(0, 1)), netip.MustParseAddr(serverAt(0, 2))},
		PrivateOK: true, NoIPv6: true, Dialer: h,
	}
	defer r.Close()
	differ := map[string]int{}
	same, fails := 0, 0
	for _, q := range e.questions {
		m, _, err := r.ExchangeContext(t.Context(), parseQuestion(q), "")
		ours := formatOutcome(m, err)
		all := map[string]string{}
		for peer, at := range peers {
			m := parseQuestion(q)
			m.RecursionDesired = true
			all[peer] = formatOutcome(overWire(t, h, at, m))
		}
		for _, peer := range slices.Sorted(maps.Keys(all)) {
			if all[peer] == ours {
				same++
				continue
			}
			why := ""
			for _, d := range peersDiffer {
				if d.peer == peer && strings.Contains(q, d.pattern) {
					why = d.why
				}
			}
			if why != "" {
				differ[peer+": "+why]++
			} else if fails++; fails <= 40 {
				t.Errorf("%s\n  ours: %s\n  %s: %s", q, ours, peer, all[peer])
			}
		}
	}
	s := r.Stats()
	t.Logf("%d questions: %d answers as the peers', %d others, by reason: %v; %d queries, %d over TCP", len(e.questions), same, 2*len(e.questions)-same, differ, s.Wire, s.TCP)
	assert.Zero(t, fails)
	assert.Positive(t, s.TCP)
	for _, d := range peersDiffer {
		assert.Positive(t, differ[d.peer+": "+d.why], "no answer differs for this reason any more: %s", d.why)
	}
}
