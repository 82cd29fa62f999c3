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

// A Servers holds the DNS servers of the system. The function Ask reports them. Default servers that Ask cannot report
// come from the resolv.conf file at Path. Methods with a parameter now (current time) read again after five seconds. It
// is safe for concurrent use.
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

// NewServers returns the servers in the resolv.conf file at path, or the system's servers if path is empty. Servers
// whose address (host and port) ok rejects are omitted. spawn must call its argument in a new goroutine and return
// true, or return false after shutdown.
func NewServers(path string, ok func(addr string) bool, spawn func(func(context.Context)) bool) *Servers {
	if path == "" {
		return &Servers{Ask: askSystem, Path: systemConf, OK: ok, Spawn: spawn}
	}
	return &Servers{Path: path, OK: ok, Spawn: spawn}
}

// Domains returns the servers that are used only for names in certain domains, such as a VPN's. The keys are the
// domains, in wire format and lower case. The caller must not change the map, which may be nil. now is the current
// time.
func (f *Servers) Domains(now time.Time) map[string][]Server { return f.latestState(now).domains }

// HasRotateOption reports whether resolv.conf has the option rotate, which asks programs to use the servers in turn,
// instead of always beginning with the first.
func (f *Servers) HasRotateOption() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.rotate
}

// DefaultServers returns the servers for names outside domains with their own servers: the loopback addresses if none
// are configured. It returns an error if no read has succeeded, and two nils after Spawn has refused the first read.
// now is the current time.
func (f *Servers) DefaultServers(now time.Time) ([]Server, error) {
	k := f.latestState(now)
	return k.defaultServers, k.err
}

// Version returns a number that changes whenever the servers or their order have changed. Callers compare it with an
// earlier result. now is the current time.
func (f *Servers) Version(now time.Time) uint64 { return f.latestState(now).version }

// FindDomainServers finds the longest domain that contains the name of q and has its own servers. It returns these
// servers, and the domain's length in bytes in wire format; without a match, nil and 0. now is the current time. f may
// be nil.
func (f *Servers) FindDomainServers(q *wire.Query, now time.Time) ([]Server, int) {
	if f == nil || f.Ask == nil {
		return nil, 0
	}
	return domain.LongestMatch(f.latestState(now).domains, q)
}

// refreshPatience is how long questions wait for a new read of the configuration, if an old one is known. Reading a
// file takes less time, and scutil on a busy machine more.
const refreshPatience = 10 * time.Millisecond

// latestState returns the latest configuration. If the last check was five seconds ago, or no servers are known, a
// goroutine reads it again. latestState waits for the new configuration, at most 10 ms if servers are known. now is the
// current time.
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
	} else { // questions that arrive together must use the same servers
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
	skipFile, err := f.readSystemServers(&k)
	if !skipFile {
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

// readSystemServers calls Ask, if set, and stores the reported servers in k. skipFile is true if the file at Path must
// not be read: Ask has reported default servers, or fails after an earlier success. After an error of Ask, k is
// unchanged.
func (f *Servers) readSystemServers(k *systemState) (skipFile bool, err error) {
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

// readConfig reads the resolv.conf file into k. It does nothing if k holds the servers of the file and the file is
// unchanged. A file that is missing, or that the process may not read, lists no servers. After another error k is
// unchanged.
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
		return nil // no servers, as in Go's resolver
	}
	if err != nil {
		return err // the cause may be temporary
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
