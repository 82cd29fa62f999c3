// Package system reads the system's DNS configuration: its servers, from a file, scutil or Windows, and the hosts file.
package system

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	checkInterval = 5 * time.Second // as in Go's resolver
	maxServers    = 3               // limit of the servers that are used, see resolv.conf(5)
)

// A Server is the address of a DNS server in the system's configuration.
type Server struct {
	Addr   string // host and port
	Stream bool   // it is asked over TCP
}

// A Configuration lists the DNS servers that macOS or Windows reports.
type Configuration struct {
	Servers []netip.AddrPort            // in the order of preference
	Domains map[string][]netip.AddrPort // servers for the names in a domain only, by domain
}

// A Servers holds the DNS servers of the system, which the function Ask reports. The servers for all names come from
// the resolv.conf file at Path instead if Ask is nil, reports servers only for certain domains or none at all, or fails
// without an earlier success.
//
// Methods with the parameter now, the current time, read the configuration again if the last check was five seconds ago
// or earlier. A Servers is safe for concurrent use.
type Servers struct {
	Ask  func() (Configuration, error) // asks the system; nil: only the file is read
	Path string                        // the file, which is read if the system reports no servers; empty: there is none
	OK   func(addr string) bool        // reports whether a server at a host and port is valid; other servers are omitted

	// Spawn must call f in a new goroutine and return true, or return false after the owner of the Servers (a Client) was
	// closed. The owner waits for the goroutine when it is closed.
	Spawn func(f func(context.Context)) bool

	// The fields above are set before first use and only read after.

	mu      sync.Mutex    // guards the fields below; not held while the configuration is read
	checked time.Time     // when the configuration was last checked
	reading chan struct{} // closed when the running read has ended; nil: none is running
	state   systemState
}

// A systemState is the result of one reading of the configuration. Its slices and maps are never changed, so copies may
// share them.
type systemState struct {
	err            error               // why defaultServers is nil; otherwise nil
	asked          bool                // Ask has succeeded at least once
	changed        time.Time           // modification time of the file when it was read; zero: it was not read
	size           int64               // size of the file then
	defaultServers []Server            // for all names
	domains        map[string][]Server // in wire format and lower case
	rotate         bool                // the file has the option rotate
	version        uint64              // number of changes of defaultServers and domains
}

// NewServers returns the servers in the file at path, or the system's servers if path is empty. ok reports whether a
// server's address, with host and port, is valid; other servers are omitted.
//
// spawn must call its argument in a new goroutine and return true, or return false after the caller has shut down. The
// configuration is read in these goroutines.
func NewServers(path string, ok func(addr string) bool, spawn func(func(context.Context)) bool) *Servers {
	if path == "" {
		return &Servers{Ask: askSystem, Path: systemConf, OK: ok, Spawn: spawn}
	}
	return &Servers{Path: path, OK: ok, Spawn: spawn}
}

// Domains returns the servers that are used only for names in certain domains, such as the domain of a VPN. The keys
// are the domains, in wire format and lower case. The map is empty or nil if no domain has its own servers. The caller
// must not change the map. now is the current time.
func (f *Servers) Domains(now time.Time) map[string][]Server { return f.latestState(now).domains }

// HasRotateOption reports whether resolv.conf has the option rotate, which asks programs to use the servers in turn,
// instead of always beginning with the first.
func (f *Servers) HasRotateOption() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.rotate
}

// DefaultServers returns the servers for all names, except names in a domain with its own servers (see
// FindDomainServers). now is the current time. If the configuration lists no servers, the result is the loopback
// addresses. A file that is missing, or that the process may not read, lists no servers.
//
// If reading fails otherwise and no earlier read has succeeded, DefaultServers returns the error, and the next call
// reads again. If Spawn has returned false before the first read, both results are nil.
func (f *Servers) DefaultServers(now time.Time) ([]Server, error) {
	k := f.latestState(now)
	return k.defaultServers, k.err
}

// Version returns a number that changes whenever the servers or their order have changed. Callers compare it with an
// earlier result. now is the current time.
func (f *Servers) Version(now time.Time) uint64 { return f.latestState(now).version }

// FindDomainServers finds the longest domain that contains the name of q and has its own servers, such as the domain of
// a VPN. It returns these servers, and the length in bytes of the domain in wire format. now is the current time. If no
// domain matches, or f is nil, it returns nil and 0.
func (f *Servers) FindDomainServers(q *wire.Query, now time.Time) ([]Server, int) {
	if f == nil || f.Ask == nil {
		return nil, 0
	}
	return domain.LongestMatch(f.latestState(now).domains, q)
}

// refreshPatience is how long questions wait for a new read of the configuration, if an old one is known. Reading a
// file takes less time, and scutil on a busy machine more.
const refreshPatience = 10 * time.Millisecond

// latestState returns the latest configuration. now is the current time. If the last check was five seconds ago or
// earlier, or no servers are known, it starts a goroutine that reads the configuration again, unless a read is running.
//
// For 10 ms (refreshPatience) after the start of a check, callers wait for the end of the read, so that questions that
// arrive together use the same servers. Later callers get the old configuration until the read has ended. If no servers
// are known, all callers wait until then.
func (f *Servers) latestState(now time.Time) systemState {
	f.mu.Lock()
	had, age := f.state, now.Sub(f.checked)
	if had.defaultServers != nil && age < checkInterval && (f.reading == nil || age >= refreshPatience) {
		f.mu.Unlock()
		return had
	}
	if f.reading == nil {
		f.reading = make(chan struct{})
		if !f.Spawn(func(context.Context) { f.refreshState(had) }) { // the owner was closed
			f.reading = nil
			f.mu.Unlock()
			return had
		}
	}
	if had.defaultServers == nil || age >= checkInterval {
		f.checked = now
	}
	patience := refreshPatience - now.Sub(f.checked)
	done := f.reading
	f.mu.Unlock()
	if had.defaultServers == nil {
		<-done
	} else {
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case <-done:
		case <-late.C:
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// refreshState reads the configuration, stores it, and wakes the callers of latestState that wait for it. k is the
// stored configuration. If reading fails, the servers in k remain, and the next refresh reads again.
func (f *Servers) refreshState(k systemState) {
	earlier := k
	ok, err := f.readSystemServers(&k)
	if !ok {
		if f.Path != "" {
			err = f.readConfig(&k)
		}
		switch {
		case k.defaultServers != nil:
		case err == nil:
			k.defaultServers = []Server{{Addr: "127.0.0.1:53"}, {Addr: "[::1]:53"}}
		default: // Ask has reported no servers for all names
			k.defaultServers, k.rotate = earlier.defaultServers, earlier.rotate
		}
	}
	k.err = nil
	if k.defaultServers == nil {
		k.err = err
	}
	if !slices.Equal(earlier.defaultServers, k.defaultServers) || !maps.EqualFunc(earlier.domains, k.domains, slices.Equal[[]Server]) {
		k.version++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = k
	close(f.reading)
	f.reading = nil
}

// readSystemServers calls Ask and stores the reported servers in k. The first result is true if the file at Path must
// not be read: Ask has reported servers for all names, or has failed after an earlier success. If Ask fails,
// readSystemServers returns the error and does not change k.
func (f *Servers) readSystemServers(k *systemState) (bool, error) {
	if f.Ask == nil {
		return false, nil
	}
	named, err := f.Ask()
	if err != nil {
		// After an earlier success, the system is probably busy. Names that only some of the system's servers know must
		// then not be sent to the servers in the file.
		return k.asked, err
	}
	k.asked, k.changed, k.rotate = true, time.Time{}, false
	k.defaultServers, k.domains = f.firstValidServers(named.Servers), make(map[string][]Server)
	for name, servers := range named.Domains {
		key, err := domain.ParseKey(name)
		if first := f.firstValidServers(servers); err == nil && first != nil {
			k.domains[key] = first
		}
	}
	return k.defaultServers != nil, nil
}

// firstValidServers returns the first three (maxServers) of the servers that the function f.OK accepts.
func (f *Servers) firstValidServers(servers []netip.AddrPort) (first []Server) {
	for _, at := range servers {
		if addr := at.String(); len(first) < maxServers && f.OK(addr) {
			first = append(first, Server{Addr: addr})
		}
	}
	return first
}

// readConfig reads the resolv.conf file into k. It does nothing if k holds the servers of the file and the file has not
// changed. A file that is missing, or that the process may not read, lists no servers, as in Go's resolver. After any
// other error k is unchanged, because the cause may be temporary.
func (f *Servers) readConfig(k *systemState) error {
	info, err := os.Stat(f.Path)
	if err == nil && k.defaultServers != nil && info.ModTime().Equal(k.changed) && info.Size() == k.size {
		return nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(f.Path)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		k.defaultServers, k.rotate, k.changed = nil, false, time.Time{}
		return nil
	}
	if err != nil {
		return err
	}
	k.defaultServers, k.changed, k.size = nil, info.ModTime(), info.Size()
	named, options, _ := parseResolvConf(string(text))
	k.rotate = slices.Contains(options, "rotate")
	stream := slices.ContainsFunc(options, func(o string) bool { return o == "use-vc" || o == "usevc" || o == "tcp" }) // of Linux, FreeBSD and OpenBSD
	for _, s := range named {
		if _, err := netip.ParseAddr(s); err != nil {
			continue // a name is no server, for Go and glibc as well
		}
		if addr := net.JoinHostPort(s, "53"); len(k.defaultServers) < maxServers && f.OK(addr) {
			k.defaultServers = append(k.defaultServers, Server{addr, stream})
		}
	}
	return nil
}

// parseResolvConf returns the servers, options and search domains in the text of a resolv.conf file. Lines may have any
// length, whereas package dns ignores a line above 64 KiB and all lines after it.
func parseResolvConf(text string) (servers, options, search []string) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			servers = append(servers, words[1])
		case "options":
			options = append(options, words[1:]...)
		case "search":
			search = words[1:]
		case "domain":
			search = words[1:2]
		}
	}
	return servers, options, search
}
