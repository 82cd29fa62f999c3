package dnshedge

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	resolvCheck = 5 * time.Second // as often as Go's resolver looks
	resolvMax   = 3               // servers that are used, see resolv.conf(5)
)

// systemDNS is what the system says of its servers.
type systemDNS struct {
	servers []netip.AddrPort            // in the order of preference
	domains map[string][]netip.AddrPort // of those that are for the names in a domain only
}

// resolvConf is where the system's servers are read: the system itself, or a resolv.conf
// file. Both are read again when they may have changed.
type resolvConf struct {
	ask  func() (systemDNS, error) // the system; nil: the file is all there is
	path string                    // read if the system says nothing; empty: there is none

	mu      sync.Mutex // guards the fields below
	checked time.Time
	asked   bool // the system has answered
	changed time.Time
	size    int64
	ups     []Upstream
	domains map[string][]Upstream // in wire format and lower case
	rotate  bool
}

// rotates reports whether the file has the option rotate.
func (f *resolvConf) rotates() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rotate
}

// upstreams returns the servers for all names. If nobody names any, they are those of this
// machine.
func (f *resolvConf) upstreams(now time.Time) []Upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh(now)
	return f.ups
}

// route returns the servers that the system asks about q only, and the length of their domain
// in wire format; 0: there are none.
func (f *resolvConf) route(q *wire.Query, now time.Time) ([]Upstream, int) {
	if f.ask == nil {
		return nil, 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh(now)
	return longestDomain(f.domains, q)
}

// refresh reads what may have changed. The caller holds mu.
func (f *resolvConf) refresh(now time.Time) {
	if f.ups != nil && now.Sub(f.checked) < resolvCheck {
		return
	}
	f.checked = now
	if f.askSystem() {
		return
	}
	if f.path != "" {
		f.read()
	}
	if f.ups == nil {
		f.ups = []Upstream{{Net: defaultNet, Addr: "127.0.0.1:53"}, {Net: defaultNet, Addr: "[::1]:53"}}
	}
}

// askSystem asks the system, and reports whether it has servers for all names. One that has
// answered before and does not now is busy: other servers must not be asked meanwhile about
// names that only some of its servers know. The caller holds mu.
func (f *resolvConf) askSystem() bool {
	if f.ask == nil {
		return false
	}
	found, err := f.ask()
	if err != nil {
		return f.asked
	}
	f.asked, f.changed, f.rotate = true, time.Time{}, false
	f.ups, f.domains = systemUpstreams(found.servers), make(map[string][]Upstream)
	for domain, servers := range found.domains {
		key, err := domainKey(domain)
		if ups := systemUpstreams(servers); err == nil && ups != nil {
			f.domains[key] = ups
		}
	}
	return f.ups != nil
}

// systemUpstreams returns the first servers of the system that can be asked.
func systemUpstreams(servers []netip.AddrPort) (ups []Upstream) {
	for _, at := range servers {
		up := Upstream{Net: defaultNet, Addr: at.String()}
		if up.validate() == nil && len(ups) < resolvMax {
			ups = append(ups, up)
		}
	}
	return ups
}

// read reads the file, if it has changed. The caller holds mu.
func (f *resolvConf) read() {
	info, err := os.Stat(f.path)
	if err == nil && f.ups != nil && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return
	}
	if err == nil {
		f.changed, f.size = info.ModTime(), info.Size()
	}
	f.ups = nil
	network, options := defaultNet, f.options()
	f.rotate = slices.Contains(options, "rotate")
	if slices.Contains(options, "use-vc") {
		network = streamNet
	}
	if conf, err := dns.ClientConfigFromFile(f.path); err == nil {
		for _, s := range conf.Servers {
			up := Upstream{Net: network, Addr: net.JoinHostPort(s, conf.Port)}
			if up.validate() == nil && len(f.ups) < resolvMax {
				f.ups = append(f.ups, up)
			}
		}
	}
}

// options returns the file's options, of which package dns knows only some.
func (f *resolvConf) options() (all []string) {
	b, err := os.ReadFile(f.path)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == "options" {
			all = append(all, words[1:]...)
		}
	}
	return all
}
