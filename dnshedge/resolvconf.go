package dnshedge

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvCheck = 5 * time.Second // as often as Go's resolver looks
	resolvMax   = 3               // servers that are used (resolv.conf(5))
)

// resolvConf knows the servers of a resolv.conf file, and reads it again when it
// has changed.
type resolvConf struct {
	path string

	mu      sync.Mutex // guards the fields below
	checked time.Time
	changed time.Time
	size    int64
	ups     []Upstream
}

// upstreams returns the servers. A file that is missing, cannot be read or
// names none stands for the servers of this machine.
func (f *resolvConf) upstreams(now time.Time) []Upstream {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ups != nil && now.Sub(f.checked) < resolvCheck {
		return f.ups
	}
	f.checked = now
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
			up := Upstream{Net: "udp", Addr: net.JoinHostPort(s, conf.Port)}
			if up.validate() == nil && len(f.ups) < resolvMax {
				f.ups = append(f.ups, up)
			}
		}
	}
	if f.ups == nil {
		f.ups = []Upstream{{Net: "udp", Addr: "127.0.0.1:53"}, {Net: "udp", Addr: "[::1]:53"}}
	}
	return f.ups
}
