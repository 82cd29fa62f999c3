// Package pattern finds the value of a request, such as its route, by the patterns of [http.ServeMux].
package pattern

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/gohedge/hedge/internal/httpattempt"
)

// A Mux finds the value of the most specific pattern that matches a request. The zero Mux has no pattern. Once all are
// added it is safe for concurrent use.
type Mux[T any] struct {
	mux   *http.ServeMux
	all   map[string]*entry[T] // by the patterns of mux
	fewer sync.Map             // of *Mux[T], by the pattern that they lack
}

// An entry is a handler, because a ServeMux finds handlers only.
type entry[T any] struct {
	value T
	at    string // the line that gave it
}

func (*entry[T]) ServeHTTP(http.ResponseWriter, *http.Request) {}

// Add adds a pattern with its value. The argument at is the source line that gives the pattern; an error about two conflicting patterns
// names the lines of both.
func (m *Mux[T]) Add(pattern, at string, value T) error {
	method := pattern[:max(strings.IndexAny(pattern, " \t"), 0)]
	if method != strings.ToUpper(method) {
		return fmt.Errorf("method %q is not in upper case, and methods are case-sensitive", method)
	}
	if i := strings.IndexByte(pattern, '/'); i > len(method) {
		host := strings.TrimLeft(pattern[len(method):i], " \t")
		if _, _, err := net.SplitHostPort(host); err == nil { // a ServeMux asks for the host of a request without its port
			return fmt.Errorf("host %q has a port, and a pattern is for all ports of a host", host)
		}
		// A ServeMux compares the names of hosts byte by byte.
		pattern = pattern[:i-len(host)] + httpattempt.HostOnly(host) + pattern[i:]
	}
	if m.mux == nil {
		m.mux, m.all = http.NewServeMux(), make(map[string]*entry[T])
	}
	e := &entry[T]{value, at}
	if err := registerPattern(m.mux, pattern, e); err != nil {
		return m.withSourceLine(err, pattern, e)
	}
	m.all[pattern] = e
	return nil
}

// registerPattern adds a pattern to a mux. Its error is what the mux panics with.
func registerPattern(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// withSourceLine returns the error of a ServeMux about a pattern. If the pattern conflicts with another pattern, the text names the source lines of
// both, in place of lines of this package.
func (m *Mux[T]) withSourceLine(err error, pattern string, e *entry[T]) error {
	_, details, conflict := strings.Cut(err.Error(), "):\n")
	if !conflict {
		return err
	}
	for known, other := range m.all {
		pair := http.NewServeMux()
		if registerPattern(pair, known, other) == nil && registerPattern(pair, pattern, e) != nil {
			return fmt.Errorf("pattern %q (given at %s) conflicts with pattern %q (given at %s):\n%s", pattern, e.at, known, other.at, details)
		}
	}
	return err
}

// Find returns the value of the pattern whose handler a ServeMux would call for a request to the host. It ignores patterns for which a
// ServeMux would redirect.
//
// Some servers read an unclean path, such as "//a" or "/x/../a", as "/a", and other servers do not. For such a path, Find returns the
// value of "/a", and reports that the path is not clean.
func (m *Mux[T]) Find(method, host string, u *url.URL) (value T, clean, ok bool) {
	if m.mux == nil {
		return value, true, false
	}
	if u.Opaque != "" {
		sent, err := url.ParseRequestURI(u.RequestURI())
		if err != nil {
			return value, false, false
		}
		u = sent
	}
	to, sent := u, cmp.Or(u.Path, "/")
	if p := cleanPath(sent); p != sent {
		to = &url.URL{Path: p}
	} else if u.Path == "" {
		to = &url.URL{Path: sent}
	}
	value, ok = m.serving(&http.Request{Method: cmp.Or(method, http.MethodGet), Host: httpattempt.HostOnly(host), URL: to})
	return value, to.Path == sent, ok
}

// cleanPath returns the path as a server reads it that removes "//", "." and ".." from paths.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// serving returns the value of the pattern that matches a request with a clean path.
func (m *Mux[T]) serving(req *http.Request) (value T, ok bool) {
	h, pattern := m.mux.Handler(req)
	if to, ok := h.(*entry[T]); ok {
		return to.value, true
	}
	if pattern == "" {
		return value, false
	}
	return m.without(pattern).serving(req) // the pattern only redirects, as from "/items" to "/items/"
}

// without returns a Mux of all patterns but the given pattern.
func (m *Mux[T]) without(pattern string) *Mux[T] {
	if known, ok := m.fewer.Load(pattern); ok {
		return known.(*Mux[T])
	}
	others := &Mux[T]{mux: http.NewServeMux(), all: make(map[string]*entry[T])}
	for p, to := range m.all {
		if p != pattern {
			others.all[p] = to
			others.mux.Handle(p, to)
		}
	}
	known, _ := m.fewer.LoadOrStore(pattern, others)
	return known.(*Mux[T])
}
