package system

import (
	"cmp"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A SearchDomains is the search list of a resolv.conf file: the domains that Go's resolver appends to names. The method
// Contains reads the file again if the last read was five seconds ago or earlier. A SearchDomains is safe for
// concurrent use.
type SearchDomains struct {
	path string // the file; empty: there is none, and no search domain

	mu      sync.Mutex // guards the fields below
	read    time.Time  // when the file was last read; zero: never
	domains map[string]struct{}
}

// NewSearchDomains returns the search domains in the file at path. If path is empty, the file is /etc/resolv.conf. On
// Windows, an empty path means that there are no search domains.
func NewSearchDomains(path string) *SearchDomains {
	return &SearchDomains{path: cmp.Or(path, systemConf)}
}

// Contains reports whether the name of q lies below a search domain, so that a resolver may have made the name by
// appending the domain. A search domain itself does not count. now is the current time. The file is read again after
// five seconds.
func (s *SearchDomains) Contains(q *wire.Query, now time.Time) bool {
	s.mu.Lock()
	if s.read.IsZero() || now.Sub(s.read) >= checkInterval {
		s.read, s.domains = now, readSearchDomains(s.path)
	}
	domains := s.domains
	s.mu.Unlock()
	_, n := domain.LongestMatch(domains, q)
	return n > 0 && n < len(q.Name)
}

// readSearchDomains returns the set of search domains in the resolv.conf file at path, in wire format and lower case.
// If the file lists none or cannot be read, it returns the domain of this machine's host name. It returns nil if path
// is empty.
func readSearchDomains(path string) map[string]struct{} {
	if path == "" {
		return nil
	}
	text, _ := os.ReadFile(path)
	_, _, search := parseResolvConf(string(text))
	if search == nil {
		name, _ := os.Hostname() // as in Go's resolver
		_, of, _ := strings.Cut(name, ".")
		search = []string{of}
	}
	domains := make(map[string]struct{})
	for _, name := range search {
		if key, err := domain.ParseKey(name); err == nil && len(key) > 1 { // the root is no search domain
			domains[key] = struct{}{}
		}
	}
	return domains
}
