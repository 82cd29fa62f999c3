package dnshedge

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	hostsCheck = 5 * time.Second // as often as Go's resolver looks
	hostsTTL   = 30              // in seconds, of what a hosts file says
)

// hostsFile is a hosts file, which it reads again when that has changed.
type hostsFile struct {
	path    string
	hosts   atomic.Pointer[map[string]*host] // by name in wire format and lower case
	checked atomic.Int64                     // when the file was looked at, Unix ns

	mu      sync.Mutex // guards the fields below; held while the file is read
	changed time.Time
	size    int64
}

// host is what a hosts file says of a name.
type host struct {
	addrs []netip.Addr
	name  string // if this is the name of an address, as 1.2.0.192.in-addr.arpa
}

// newHostsFile reads a hosts file.
func newHostsFile(path string) (*hostsFile, error) {
	f := &hostsFile{path: path}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, f.read(time.Now())
}

// find returns what the file says of the name of q, or nil. Every five seconds it looks
// whether the file has changed. What cannot be read changes nothing.
func (f *hostsFile) find(q *wire.Query, now time.Time) *host {
	if now.UnixNano()-f.checked.Load() >= int64(hostsCheck) && f.mu.TryLock() {
		_ = f.read(now)
		f.mu.Unlock()
	}
	var buf [wire.MaxKey]byte
	return (*f.hosts.Load())[string(q.AppendKey(buf[:0])[:len(q.Name)])]
}

// read reads the file if it has changed. The caller holds mu.
func (f *hostsFile) read(now time.Time) error {
	f.checked.Store(now.UnixNano())
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if f.hosts.Load() != nil && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	hosts := make(map[string]*host)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		addHosts(hosts, lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.changed, f.size = info.ModTime(), info.Size()
	f.hosts.Store(&hosts)
	return nil
}

// addHosts adds a line, "ADDRESS NAME ALIAS... # comment". As every reader of such files
// does, it ignores what it cannot read.
func addHosts(hosts map[string]*host, line string) {
	line, _, _ = strings.Cut(line, "#")
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return
	}
	ip, err := netip.ParseAddr(fields[0])
	if err != nil || ip.Zone() != "" { // no record can hold a zone
		return
	}
	ip = ip.Unmap()
	at := func(name string) *host {
		var b [wire.MaxName]byte
		n, err := dns.PackDomainName(dns.CanonicalName(name), b[:], 0, nil, false)
		if err != nil {
			return nil
		}
		h := hosts[string(b[:n])]
		if h == nil {
			h = new(host)
			hosts[string(b[:n])] = h
		}
		return h
	}
	for _, name := range fields[1:] {
		if h := at(name); h != nil && !slices.Contains(h.addrs, ip) {
			h.addrs = append(h.addrs, ip)
		}
	}
	// The first line of an address has its name. The unspecified address has none: lists of
	// names to block are full of it.
	if reverse, err := dns.ReverseAddr(ip.String()); err == nil && !ip.IsUnspecified() {
		if h := at(reverse); h.name == "" {
			h.name = dns.Fqdn(fields[1])
		}
	}
}

// answer answers a question for the name of h, or returns nil if h does not say. If a
// name has addresses in the file, others that the world may know must not be found by
// another way: in the other family, or in the hints of HTTPS and SVCB records.
func (h *host) answer(q *wire.Query) *dns.Msg {
	m := new(dns.Msg)
	header := func(t uint16) dns.RR_Header {
		return dns.RR_Header{Name: q.Text(), Rrtype: t, Class: dns.ClassINET, Ttl: hostsTTL}
	}
	wants := func(t uint16) bool { return q.Type == t || q.Type == dns.TypeANY }
	for _, ip := range h.addrs {
		switch {
		case ip.Is4() && wants(dns.TypeA):
			m.Answer = append(m.Answer, &dns.A{Hdr: header(dns.TypeA), A: ip.AsSlice()})
		case ip.Is6() && wants(dns.TypeAAAA):
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: ip.AsSlice()})
		}
	}
	if h.name != "" && wants(dns.TypePTR) {
		m.Answer = append(m.Answer, &dns.PTR{Hdr: header(dns.TypePTR), Ptr: h.name})
	}
	if len(m.Answer) > 0 {
		return m
	}
	switch q.Type {
	case dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
		if len(h.addrs) == 0 {
			return nil
		}
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: header(dns.TypeSOA), Ns: q.Text(), Mbox: "nobody.invalid.",
			Serial: 1, Refresh: 3600, Retry: 1200, Expire: 604800, Minttl: hostsTTL,
		}}
		return m
	}
	return nil
}
