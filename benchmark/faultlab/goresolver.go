package faultlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// goResolver is Go's own resolver. It reads /etc/resolv.conf and nothing else: a process of its own has the world's file there.
// In memory it is told which server to dial, as if it had read the file.
func (b *bench) goResolver(c *contender) error {
	if b.conf.Memory {
		c.ask = b.mapped(c.name)
		return nil
	}
	cmd, err := ourselves(resolverEnv + "=" + b.resolvConf())
	if err != nil {
		return err
	}
	ownMounts(cmd)
	return b.process(c, cmd, func(q question) question {
		if q.typ == dns.TypeHTTPS {
			q.typ = insteadOfHTTPS
		}
		return q
	})
}

// lookUp asks Go's resolver.
func lookUp(ctx context.Context, r *net.Resolver, name string, typ uint16) (said, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	n, err := 0, error(nil)
	if typ == dns.TypeA {
		var all []net.IP
		all, err = r.LookupIP(ctx, "ip4", name)
		n = len(all)
	} else {
		var all []string
		all, err = r.LookupTXT(ctx, name)
		n = len(all)
	}
	var no *net.DNSError
	switch {
	case errors.As(err, &no) && no.IsNotFound:
		return deniedName, nil
	case err != nil || n == 0:
		return nothingFound, err
	}
	return found, nil
}

// lookup is one of Go's resolver's. It keeps to the servers that it began with, in their order.
type lookup struct {
	servers []string
	dialled atomic.Int64
}

type lookupKey struct{}

// resolvCheck is how often Go's resolver reads resolv.conf at most.
const resolvCheck = 5 * time.Second

// mapped asks Go's resolver in this process, whose n-th attempt goes to the n-th server, in turn.
func (b *bench) mapped(host string) func(context.Context, question) (said, error) {
	var (
		mu      sync.Mutex // guards the variables below
		known   []string
		checked time.Time
	)
	servers := func() ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		if known != nil && time.Since(checked) < resolvCheck {
			return known, nil
		}
		conf, err := dns.ClientConfigFromFile(b.resolvConf())
		if err != nil {
			return nil, err
		}
		known, checked = conf.Servers, time.Now()
		return known, nil
	}
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		l := ctx.Value(lookupKey{}).(*lookup)
		n := int(l.dialled.Add(1) - 1)
		return b.net.Host(host).DialContext(ctx, network, net.JoinHostPort(l.servers[n%len(l.servers)], "53"))
	}}
	return func(ctx context.Context, q question) (said, error) {
		all, err := servers()
		if err != nil {
			return nothingFound, err
		}
		l := &lookup{servers: all}
		return lookUp(context.WithValue(ctx, lookupKey{}, l), r, q.name, q.typ)
	}
}

// resolverEnv has the file that a process has in place of /etc/resolv.conf while it answers questions with Go's resolver.
const resolverEnv = "FAULTLAB_RESOLV_CONF"

// Resolve makes this process Go's resolver if another one that runs this package wants it, and does not return
// then. Programs that call Run call it first.
func Resolve() {
	file := os.Getenv(resolverEnv)
	if file == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "faultlab:", resolve(file))
	os.Exit(1)
}

// resolve answers questions over UDP with what Go's resolver says, and listens for TCP to say that it is ready.
func resolve(file string) error {
	if err := mountResolvConf(file); err != nil {
		return err
	}
	go func() { // whoever started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	r := &net.Resolver{PreferGo: true}
	pc, err := net.ListenPacket("udp4", listen)
	if err != nil {
		return err
	}
	if _, err := net.Listen("tcp4", listen); err != nil {
		return err
	}
	return dns.ActivateAndServe(nil, pc, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		name, typ := q.Question[0].Name, q.Question[0].Qtype
		m := new(dns.Msg).SetReply(q)
		switch told, _ := lookUp(context.Background(), r, name, typ); {
		case told == deniedName:
			m.Rcode = dns.RcodeNameError
		case told == nothingFound:
			m.Rcode = dns.RcodeServerFailure
		case typ == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: header(name, typ), A: net.IPv4(192, 0, 2, 1)})
		default:
			m.Answer = append(m.Answer, &dns.TXT{Hdr: header(name, typ), Txt: []string{"x"}})
		}
		_ = w.WriteMsg(m)
	}))
}

func header(name string, typ uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: typ, Class: dns.ClassINET}
}

// ourselves returns the command that runs this program with a variable of the environment.
func ourselves(variable string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GODEBUG=") && !strings.HasPrefix(v, "LOCALDOMAIN=") && !strings.HasPrefix(v, "RES_OPTIONS=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, variable)
	cmd.Stderr = os.Stderr
	return cmd, nil
}
