package resolvers

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
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

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// patience is how long questions wait for an answer.
const patience = 8 * time.Second

// resolver is one of those that are compared.
type resolver struct {
	name string
	at   netip.AddrPort // where it is asked
	from netip.Addr     // from where it asks servers
	lab  *lab
}

// startAll starts the resolvers, ours last. The test is skipped if a program is missing.
func startAll(t *testing.T, l *lab) (peers []*resolver, ours *resolver) {
	t.Helper()
	peers = startPeers(t, l, unboundConf, namedConf)
	ours = startOurs(t, l, "")
	warm(t, append(slices.Clone(peers), ours)...)
	return peers, ours
}

// startOurs starts our own resolver. It asks from the device's own address, as it is told none. With an anchor, it validates.
func startOurs(t *testing.T, l *lab, anchor string) *resolver {
	t.Helper()
	r := &resolver{"ours", netip.MustParseAddrPort("127.0.0.1:5303"), network.Addr().Next(), l}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), oursEnv+"="+r.at.String(), anchorEnv+"="+anchor)
	run(t, l, cmd)
	return r
}

// warm waits until resolvers answer.
func warm(t *testing.T, all ...*resolver) {
	t.Helper()
	for _, r := range all {
		require.Eventually(t, func() bool {
			answer := r.ask(t.Context(), ask{name: "warm.", qtype: dns.TypeA})
			return answer.err == nil && answer.msg.Rcode == dns.RcodeNameError
		}, 30*time.Second, 50*time.Millisecond, r.name)
	}
}

// peersRoot is the root of another Debian, which has other versions of unbound and BIND.
var peersRoot = flag.String("peers", "", "folder with the root of a Debian `suite`: its unbound and BIND are started by chroot, in place of those in PATH")

// configurationFolder returns a new folder for configurations, and its path for programs in peersRoot.
func configurationFolder(t *testing.T) (dir, seen string) {
	t.Helper()
	if *peersRoot == "" {
		dir = t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o755))
		return dir, dir
	}
	dir, err := os.MkdirTemp(filepath.Join(*peersRoot, "tmp"), "resolvers")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir, filepath.Join("/tmp", filepath.Base(dir))
}

// findPeer returns the command that starts a program of a peer.
func findPeer(program string) ([]string, error) {
	if *peersRoot == "" {
		path, err := exec.LookPath(program)
		return []string{path}, err
	}
	path := filepath.Join("/usr/sbin", program)
	_, err := os.Stat(filepath.Join(*peersRoot, path))
	return []string{"chroot", *peersRoot, path}, err
}

// startPeers starts unbound and BIND. The test is skipped if a program is missing.
func startPeers(t *testing.T, l *lab, unbound, named string) (peers []*resolver) {
	t.Helper()
	dir, seen := configurationFolder(t)
	hints := filepath.Join(seen, "hints")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hints"), fmt.Appendf(nil, ". 3600000 NS a.root.\na.root. 3600000 A %s\n", rootAddr), 0o644))
	for i, p := range []struct {
		program, conf string
		args          []string
	}{
		{"unbound", unbound, []string{"-d", "-c"}},
		{"named", named, []string{"-f", "-n", "1", "-c"}},
	} {
		command, err := findPeer(p.program)
		if err != nil {
			t.Skip(err)
		}
		// BIND listens only at addresses that a device has.
		r := &resolver{p.program, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(5301+i)), netip.AddrFrom4([4]byte{198, 19, 0, byte(1 + i)}), l}
		conf := p.program + ".conf"
		text := strings.NewReplacer("PORT", fmt.Sprint(r.at.Port()), "FROM", r.from.String(), "HINTS", hints, "DIR", seen).Replace(p.conf)
		require.NoError(t, os.WriteFile(filepath.Join(dir, conf), []byte(text), 0o644))
		command = slices.Concat(command, p.args, []string{filepath.Join(seen, conf)})
		run(t, l, exec.Command(command[0], command[1:]...))
		peers = append(peers, r)
	}
	return peers
}

const unboundConf = `server:
  interface: 127.0.0.1@PORT
  outgoing-interface: FROM
  outgoing-interface: ::1
  access-control: 127.0.0.0/8 allow
  do-not-query-localhost: no
  module-config: "iterator"
  root-hints: "HINTS"
  username: ""
  chroot: ""
  directory: "DIR"
  pidfile: ""
  use-syslog: no
  do-daemonize: no
  num-threads: 1
  discard-timeout: 0
remote-control:
  control-enable: no
`

const namedConf = `options {
  directory "DIR";
  listen-on port PORT { 127.0.0.1; };
  listen-on-v6 { none; };
  query-source address FROM;
  pid-file none; session-keyfile none;
  recursion yes; allow-query { any; };
  dnssec-validation no; empty-zones-enable no;
  clients-per-query 0; max-clients-per-query 0;
};
logging { category default { null; }; };
controls { };
zone "." { type hint; file "HINTS"; };
`

// run runs a program in the lab until the test ends.
func run(t *testing.T, l *lab, cmd *exec.Cmd) {
	t.Helper()
	dieWithParent(cmd)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second
	started, over, left := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		left <- l.space.Do(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				<-over // the thread that is the program's parent
			}
			return err
		})
	}()
	select {
	case err := <-started:
		require.NoError(t, err)
	case err := <-left:
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		close(over)
		<-left
		assert.NotContains(t, said.String(), "DATA RACE")
		if t.Failed() && said.Len() > 0 {
			t.Log(cmd.Path, said.String())
		}
	})
}

// oursEnv is set for the process that is our own resolver: to where it is asked.
const oursEnv = "RESOLVERS_OURS"

// anchorEnv has the root's DS record for it; empty: it does not validate.
const anchorEnv = "RESOLVERS_ANCHOR"

// TestMain makes the process our own resolver if another one that runs these tests wants it.
func TestMain(m *testing.M) {
	if at := os.Getenv(oursEnv); at != "" {
		fmt.Fprintln(os.Stderr, serve(at))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serve is our own resolver, as a program uses it. It ends with an error, or the process.
func serve(at string) error {
	resolver := &recursor.Resolver{Hints: []netip.Addr{rootAddr}, PrivateOK: true, Trust: dnssec.Trust{Off: true}}
	if anchor := os.Getenv(anchorEnv); anchor != "" {
		ds, err := dns.NewRR(anchor)
		if err != nil {
			return err
		}
		resolver.Trust = dnssec.Trust{Anchors: []dns.RR{ds}, AllowSHA1: true} // as the others do
		resolver.Limits.NSEC3Iterations = 150
	}
	server := &dnshedge.Server{Client: &dnshedge.Client{Exchanger: resolver, Cache: new(dnshedge.Cache)}}
	pc, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- server.ServePacket(pc) }()
	go func() { ended <- server.Serve(ln) }()
	return <-ended
}

// ask is a question.
type ask struct {
	name        string
	qtype       uint16
	subnet      bool          // with the client's subnet (RFC 7871)
	noRecursion bool          // without RD
	signed      bool          // with DO
	unchecked   bool          // with CD
	within      time.Duration // how long it waits; zero: patience
}

func (a ask) String() string { return a.name + " " + dns.TypeToString[a.qtype] }

// message returns the question as a message.
func (a ask) message() *dns.Msg {
	m := new(dns.Msg).SetQuestion(a.name, a.qtype)
	m.RecursionDesired, m.CheckingDisabled = !a.noRecursion, a.unchecked
	m.SetEdns0(1232, a.signed)
	if a.subnet {
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IP{198, 51, 100, 0}})
	}
	return m
}

// outcome is what became of a question.
type outcome struct {
	msg  *dns.Msg
	err  error
	took time.Duration
}

// dial opens a socket to the resolver.
func (r *resolver) dial(network string) (conn net.Conn, err error) {
	err = r.lab.space.Do(func() (err error) {
		conn, err = net.DialTimeout(network, r.at.String(), patience)
		return err
	})
	return conn, err
}

// ask asks over UDP, and over TCP if the answer does not fit.
func (r *resolver) ask(ctx context.Context, a ask) outcome {
	conn, err := r.dial("udp")
	if err != nil {
		return outcome{err: err}
	}
	return r.askOver(ctx, conn, a)
}

// askOver asks over a socket, and closes it.
func (r *resolver) askOver(ctx context.Context, conn net.Conn, a ask) outcome {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	begun := time.Now()
	c := &dns.Client{Timeout: cmp.Or(a.within, patience)}
	m, _, err := c.ExchangeWithConn(a.message(), &dns.Conn{Conn: conn, UDPSize: 1232})
	if err == nil && m.Truncated {
		stream, dialErr := r.dial("tcp")
		if dialErr != nil {
			return outcome{err: dialErr}
		}
		defer stream.Close()
		m, _, err = c.ExchangeWithConn(a.message(), &dns.Conn{Conn: stream})
	}
	return outcome{m, err, time.Since(begun)}
}

// crowd asks all questions at the same time.
func (r *resolver) crowd(t *testing.T, all []ask) (outcomes []outcome) {
	t.Helper()
	var conns []net.Conn
	for range all {
		conn, err := r.dial("udp")
		require.NoError(t, err)
		conns = append(conns, conn)
	}
	outcomes = make([]outcome, len(all))
	done := make(chan struct{})
	for i, a := range all {
		go func() {
			outcomes[i] = r.askOver(t.Context(), conns[i], a)
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
	return outcomes
}

// answered reports whether there is an answer, be it that there is nothing.
func (o outcome) answered() bool {
	return o.err == nil && slices.Contains([]int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain}, o.msg.Rcode)
}

// why is the text of the extended errors (RFC 8914) of a failure.
func (o outcome) why() (text string) {
	if opt := o.msg.IsEdns0(); opt != nil && o.msg.Rcode == dns.RcodeServerFailure {
		for _, option := range opt.Option {
			if e, ok := option.(*dns.EDNS0_EDE); ok {
				text += " (" + e.ExtraText + ")"
			}
		}
	}
	return text
}

// String is the rcode and the records of the answer, as a set: without their order and their TTLs.
func (o outcome) String() string {
	if o.err != nil {
		return "no answer"
	}
	var all []string
	for _, rr := range o.msg.Answer {
		h := rr.Header()
		text := fmt.Sprintf("%s %s %s", h.Name, dns.TypeToString[h.Rrtype], strings.TrimPrefix(rr.String(), h.String()))
		if h.Class != dns.ClassINET {
			text += " of class " + dns.ClassToString[h.Class]
		}
		all = append(all, strings.ToLower(text))
	}
	slices.Sort(all)
	return strings.TrimSpace(dns.RcodeToString[o.msg.Rcode] + " " + strings.Join(slices.Compact(all), ", "))
}
