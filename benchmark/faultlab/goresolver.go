package faultlab

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/helper"
)

// startGoResolver starts Go's own resolver. It runs in a helper process that has the lab's resolv.conf in place of
// /etc/resolv.conf, because Go's resolver reads no other file. On a network in memory, it runs in this process.
func (r *resolver) startGoResolver() (resolveFunc, error) {
	if r.conf.Memory {
		return r.startGoResolverInProcess(), nil
	}
	own, err := goResolverHelper.Command(context.Background(), struct{}{}, "GODEBUG=", "LOCALDOMAIN=", "RES_OPTIONS=")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$1"`, r.resolvConfPath(), own.Path)
	cmd.Env, cmd.Stderr = own.Env, os.Stderr
	resolve, err := r.startResolverProcess(cmd)
	return func(ctx context.Context, q query) (outcome, error) {
		if q.qtype == dns.TypeHTTPS {
			q.qtype = httpsSubstituteType
		}
		return resolve(ctx, q)
	}, err
}

// lookupWithGo looks up a name with r, Go's own resolver: IPv4 addresses if qtype is A, and otherwise TXT records.
func lookupWithGo(ctx context.Context, r *net.Resolver, name string, qtype uint16) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	n, err := 0, error(nil)
	if qtype == dns.TypeA {
		var addresses []net.IP
		addresses, err = r.LookupIP(ctx, "ip4", name)
		n = len(addresses)
	} else {
		var texts []string
		texts, err = r.LookupTXT(ctx, name)
		n = len(texts)
	}
	var dnsErr *net.DNSError
	switch {
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nameDenied, nil
	case err != nil || n == 0:
		return noRecords, err
	}
	return hasRecords, nil
}

// A goLookupState has the servers of one lookup by Go's resolver, and counts the queries: each goes to the next server.
type goLookupState struct {
	servers []string
	dials   atomic.Int64
}

// A goLookupKey is the context key for the state of a lookup by Go's resolver, a goLookupState.
type goLookupKey struct{}

// resolvConfInterval is the shortest time between two reads of resolv.conf by Go's resolver.
const resolvConfInterval = 5 * time.Second

// startGoResolverInProcess starts Go's resolver in this process, for a network in memory. Lookups read the servers from the
// lab's resolv.conf, at most every five seconds. The first query of a lookup goes to the first server, and each further
// query to the next server.
func (r *resolver) startGoResolverInProcess() resolveFunc {
	var (
		mu      sync.Mutex // guards the variables below
		known   []string
		checked time.Time
	)
	currentServers := func() ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		if known != nil && time.Since(checked) < resolvConfInterval {
			return known, nil
		}
		conf, err := dns.ClientConfigFromFile(r.resolvConfPath())
		if err != nil {
			return nil, err
		}
		known, checked = conf.Servers, time.Now()
		return known, nil
	}
	goResolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		l := ctx.Value(goLookupKey{}).(*goLookupState)
		n := int(l.dials.Add(1) - 1)
		return r.Net.Host(r.name).DialContext(ctx, network, net.JoinHostPort(l.servers[n%len(l.servers)], "53"))
	}}
	return func(ctx context.Context, q query) (outcome, error) {
		servers, err := currentServers()
		if err != nil {
			return noRecords, err
		}
		return lookupWithGo(context.WithValue(ctx, goLookupKey{}, &goLookupState{servers: servers}), goResolver, q.name, q.qtype)
	}
}

var goResolverHelper = helper.New("faultlab", serveGoResolver)

// serveGoResolver answers DNS queries over UDP by Go's resolver, until the parent process ends. It also listens on TCP, to
// show that it is ready.
func serveGoResolver(struct{}) error {
	go func() { // ends with the process that has started it
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	r := &net.Resolver{PreferGo: true}
	pc, err := net.ListenPacket("udp4", dnsserver.ListenAddress)
	if err != nil {
		return err
	}
	if _, err := net.Listen("tcp4", dnsserver.ListenAddress); err != nil {
		return err
	}
	return dns.ActivateAndServe(nil, pc, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		name, qtype := q.Question[0].Name, q.Question[0].Qtype
		header := dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET}
		m := new(dns.Msg).SetReply(q)
		switch res, _ := lookupWithGo(context.Background(), r, name, qtype); {
		case res == nameDenied:
			m.Rcode = dns.RcodeNameError
		case res == noRecords:
			m.Rcode = dns.RcodeServerFailure
		case qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)})
		default:
			m.Answer = append(m.Answer, &dns.TXT{Hdr: header, Txt: []string{"x"}})
		}
		_ = w.WriteMsg(m)
	}))
}
