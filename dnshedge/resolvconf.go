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
)

const (
	resolvCheck = 5 * time.Second // as often as Go's resolver looks
	resolvMax   = 3               // servers that are used, see resolv.conf(5)
)

// resolvConf is a resolv.conf file, which it reads again when that has changed.
type resolvConf struct {
	path string // empty: there is no file, and the system is asked instead

	mu      sync.Mutex // guards the fields below
	checked time.Time
	changed time.Time
	size    int64
	ups     []Upstream
	rotate  bool
}

// rotates reports whether the file has the option rotate.
func (f *resolvConf) rotates() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rotate
}

// upstreams returns the servers that the file names. If it cannot be read or names
// none, they are those of this machine.
func (f *resolvConf) upstreams(now time.Time) []Upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ups != nil && now.Sub(f.checked) < resolvCheck {
		return f.ups
	}
	f.checked = now
	if f.path == "" {
		if servers, err := systemServers(); err == nil {
			f.ups = nil
			for _, ip := range servers[:min(len(servers), resolvMax)] {
				f.ups = append(f.ups, Upstream{Net: defaultNet, Addr: netip.AddrPortFrom(ip, 53).String()})
			}
		}
		return f.orLocal()
	}
	info, err := os.Stat(f.path)
	if err == nil && f.ups != nil && info.ModTime().Equal(f.changed) && info.Size() == f.size {
		return f.ups
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
	return f.orLocal()
}

// orLocal returns the servers, or those of this machine if there are none. The caller
// holds mu.
func (f *resolvConf) orLocal() []Upstream {
	if f.ups == nil {
		f.ups = []Upstream{{Net: defaultNet, Addr: "127.0.0.1:53"}, {Net: defaultNet, Addr: "[::1]:53"}}
	}
	return f.ups
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
