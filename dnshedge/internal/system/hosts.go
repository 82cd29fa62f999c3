package system

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	hostsCheckInterval = 5 * time.Second // as in Go's resolver
	hostsTTL           = 30              // in seconds

	maxShortFile = 64 << 10 // bytes; a file of this size is read in a few milliseconds
	maxHostAddrs = 256      // limit of the addresses of one name
)

// A Hosts holds the entries of a hosts file. It reads the file again after a change. It is safe for concurrent use.
type Hosts struct {
	path    string // never changes; nor does spawn
	spawn   func(func(context.Context)) bool
	hosts   atomic.Pointer[map[string]*Host] // by name in wire format and lower case; nil: not read yet
	checked atomic.Int64                     // when the file was last checked, Unix time in ns

	mu      sync.Mutex // guards the fields below; held while the file is read
	changed time.Time  // modification time of the file when it was read
	size    int64      // size of the file then
}

// A Host holds the addresses of one name in a hosts file, or the name of one address. It does not change.
type Host struct {
	addrs []netip.Addr
	name  string // the name of an address, if the entry is that of a reverse name such as 1.2.0.192.in-addr.arpa
}

// NewHosts returns a Hosts for the file at path. Load must succeed before Find is called. spawn must call its argument
// in a new goroutine, with a context that is cancelled on shutdown, and return true. After shutdown it must return
// false.
func NewHosts(path string, spawn func(func(context.Context)) bool) *Hosts {
	return &Hosts{path: path, spawn: spawn}
}

// Load reads the hosts file for the first time. If an earlier call has succeeded, it does nothing. After an error the
// next call reads again.
func (f *Hosts) Load() error {
	if f.hosts.Load() != nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hosts.Load() != nil {
		return nil
	}
	info, err := f.statFile(time.Now())
	if err != nil {
		return err
	}
	return f.readFile(context.Background(), info)
}

// Find returns the entry for the name of q, or nil if there is none. At most every five seconds, it reads a changed
// file again, but a file above 64 KiB in the background. now is the current time. Load must have succeeded.
func (f *Hosts) Find(q *wire.Query, now time.Time) *Host {
	if now.UnixNano()-f.checked.Load() >= int64(hostsCheckInterval) && f.mu.TryLock() {
		f.refreshIfChanged(now)
	}
	var buf [wire.MaxKey]byte
	return (*f.hosts.Load())[string(q.AppendKey(buf[:0])[:len(q.Name)])]
}

// refreshIfChanged reads the file again if it has changed. A file above 64 KiB is read in the background. If reading
// fails, the old entries remain. now is the current time. The caller must hold mu, which refreshIfChanged, or its
// goroutine after reading, unlocks.
func (f *Hosts) refreshIfChanged(now time.Time) {
	info, err := f.statFile(now)
	read := func(ctx context.Context) {
		defer f.mu.Unlock()
		_ = f.readFile(ctx, info)
	}
	switch {
	case err != nil || info.ModTime().Equal(f.changed) && info.Size() == f.size:
	case info.Size() <= maxShortFile:
		read(context.Background())
		return
	case f.spawn(read):
		return
	}
	f.mu.Unlock()
}

// statFile returns the size and modification time of the file, and records that the file was checked at the time now.
func (f *Hosts) statFile(now time.Time) (os.FileInfo, error) {
	f.checked.Store(now.UnixNano())
	return os.Stat(f.path)
}

// readFile reads the file and replaces all entries. info is the size and modification time of the file before reading.
// It returns an error, and keeps the old entries, if reading fails or ctx ends. The caller must hold mu.
func (f *Hosts) readFile(ctx context.Context, info os.FileInfo) error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	hosts := make(map[string]*Host)
	for lines := bufio.NewReader(file); err == nil; {
		var line string
		if line, err = lines.ReadString('\n'); err == nil || err == io.EOF {
			addHosts(hosts, line)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err != io.EOF {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	f.changed, f.size = info.ModTime(), info.Size()
	f.hosts.Store(&hosts)
	return nil
}

// addHosts adds the entries of one line, "ADDRESS NAME ALIAS... # comment", to hosts. The keys of hosts are names in
// wire format and lower case. Like other readers of hosts files, addHosts ignores invalid text.
func addHosts(hosts map[string]*Host, line string) {
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
	at := func(name string) *Host {
		key, err := domain.ParseKey(name)
		if err != nil {
			return nil
		}
		if hosts[key] == nil {
			hosts[key] = new(Host)
		}
		return hosts[key]
	}
	first := "" // the first valid name
	for _, name := range fields[1:] {
		h := at(name)
		if h == nil {
			continue
		}
		first = cmp.Or(first, name)
		if len(h.addrs) < maxHostAddrs && !slices.Contains(h.addrs, ip) {
			h.addrs = append(h.addrs, ip)
		}
	}
	// The first line of an address determines its name. The unspecified address has no name,
	// because block lists use it for many names.
	if reverse, err := dns.ReverseAddr(ip.String()); err == nil && !ip.IsUnspecified() && first != "" {
		if h := at(reverse); h.name == "" {
			h.name = dns.Fqdn(first)
		}
	}
}

// Answer returns the response to q, a question for the name of h, or nil if a server must be queried. If the file has
// an address of the name, questions for the other address family, HTTPS and SVCB get no answer records.
func (h *Host) Answer(q *wire.Query) *dns.Msg {
	m := new(dns.Msg)
	header := func(t uint16) dns.RR_Header {
		return dns.RR_Header{Name: q.PresentationName(), Rrtype: t, Class: dns.ClassINET, Ttl: hostsTTL}
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
		// Without this response, programs would find public addresses of the name.
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: header(dns.TypeSOA), Ns: q.PresentationName(), Mbox: "nobody.invalid.",
			Serial: 1, Refresh: 3600, Retry: 1200, Expire: 604800, Minttl: hostsTTL,
		}}
		return m
	}
	return nil
}
