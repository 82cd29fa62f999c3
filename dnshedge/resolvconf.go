package dnshedge

import (
	"net"
	"net/netip"
	"os"
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
	if conf, err := dns.ClientConfigFromFile(f.path); err == nil {
		for _, s := range conf.Servers {
			up := Upstream{Net: defaultNet, Addr: net.JoinHostPort(s, conf.Port)}
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
