package resolvers

import (
	"context"
	"errors"
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
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
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
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	hints := filepath.Join(dir, "hints")
	require.NoError(t, os.WriteFile(hints, fmt.Appendf(nil, ". 3600000 NS a.root.\na.root. 3600000 A %s\n", rootAddr), 0o644))
	for i, p := range []struct {
		program, conf string
		args          []string
	}{
		{"unbound", unboundConf, []string{"-d", "-c"}},
		{"named", namedConf, []string{"-f", "-n", "1", "-c"}},
	} {
		path, err := exec.LookPath(p.program)
		if err != nil {
			t.Skip(err)
		}
		// BIND listens only at addresses that a device has.
		r := &resolver{p.program, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(5301+i)), netip.AddrFrom4([4]byte{198, 19, 0, byte(1 + i)}), l}
		conf := filepath.Join(dir, p.program+".conf")
		text := strings.NewReplacer("PORT", fmt.Sprint(r.at.Port()), "FROM", r.from.String(), "HINTS", hints, "DIR", dir).Replace(p.conf)
		require.NoError(t, os.WriteFile(conf, []byte(text), 0o644))
		run(t, l, exec.Command(path, append(p.args, conf)...))
		peers = append(peers, r)
	}
	ours = &resolver{"ours", netip.MustParseAddrPort("127.0.0.1:5303"), netip.MustParseAddr("198.19.0.3"), l}
	startOurs(t, ours)
	for _, r := range append(slices.Clone(peers), ours) {
		require.Eventually(t, func() bool {
			answer := r.ask(t.Context(), ask{name: "warm.", qtype: dns.TypeA})
			return answer.err == nil && answer.msg.Rcode == dns.RcodeNameError
		}, 30*time.Second, 50*time.Millisecond, r.name)
	}
	return peers, ours
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
		if t.Failed() && said.Len() > 0 {
			t.Log(cmd.Path, said.String())
		}
	})
}

// startOurs serves our own resolver in this process.
func startOurs(t *testing.T, r *resolver) {
	t.Helper()
	resolver := &recursor.Resolver{Hints: []netip.Addr{rootAddr}, PrivateOK: true, Dialer: within{r}}
	client := &dnshedge.Client{Exchanger: resolver, Cache: new(dnshedge.Cache)}
	server := &dnshedge.Server{Client: client}
	var pc net.PacketConn
	var ln net.Listener
	require.NoError(t, r.lab.space.Do(func() (err error) {
		if pc, err = net.ListenPacket("udp", r.at.String()); err != nil {
			return err
		}
		ln, err = net.Listen("tcp", r.at.String())
		return err
	}))
	done := make(chan error, 2)
	go func() { done <- server.ServePacket(pc) }()
	go func() { done <- server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, server.Shutdown(ctx))
		require.NoError(t, errors.Join(client.Close(), resolver.Close()))
		<-done
		<-done
	})
}

// within opens sockets in the lab, at the address of a resolver.
type within struct{ r *resolver }

func (w within) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	switch {
	case to.Addr().Is6():
	case network == "udp":
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.r.from, 0))
	default:
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.r.from, 0))
	}
	err = w.r.lab.space.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// ask is a question.
type ask struct {
	name        string
	qtype       uint16
	subnet      bool // with the client's subnet (RFC 7871)
	noRecursion bool // without RD
}

func (a ask) String() string { return a.name + " " + dns.TypeToString[a.qtype] }

// message returns the question as a message.
func (a ask) message() *dns.Msg {
	m := new(dns.Msg).SetQuestion(a.name, a.qtype)
	m.RecursionDesired = !a.noRecursion
	m.SetEdns0(1232, false)
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
	c := &dns.Client{Timeout: patience}
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
