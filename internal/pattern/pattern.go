// Package pattern maps requests to values, such as routes, with the patterns of [http.ServeMux].
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

// A Mux maps requests to values: each pattern has a value, and the most specific pattern that matches a request determines its
// value. The zero value has no patterns. After the last call of Add, a Mux is safe for concurrent use.
type Mux[T any] struct {
	mux     *http.ServeMux       // finds the entry of a request; nil: there are no patterns
	all     map[string]*entry[T] // entries by pattern
	subsets sync.Map             // cache of withoutPattern: map from pattern to *Mux[T]
}

// An entry holds the value of one pattern. It implements http.Handler so that an http.ServeMux can find it. It never serves a
// request.
type entry[T any] struct {
	value      T      // value of the pattern
	sourceLine string // source line in which the program states the pattern
}

// ServeHTTP makes an entry an http.Handler. It is never called.
func (*entry[T]) ServeHTTP(http.ResponseWriter, *http.Request) {}

// Add adds a pattern of [http.ServeMux] with its value. The argument at is the source line in which the program states
// the pattern, for error messages.
//
// Add returns an error if the pattern is invalid or conflicts with another pattern. In the second case, the error has
// the source lines of both patterns.
func (m *Mux[T]) Add(pattern, at string, value T) error {
	method := pattern[:max(strings.IndexAny(pattern, " \t"), 0)]
	if method != strings.ToUpper(method) {
		return fmt.Errorf("method %q is not in upper case, and methods are case-sensitive", method)
	}
	if i := strings.IndexByte(pattern, '/'); i > len(method) {
		host := strings.TrimLeft(pattern[len(method):i], " \t")
		if _, _, err := net.SplitHostPort(host); err == nil { // a ServeMux removes the port from the host of a request
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

// registerPattern calls mux.Handle. If that panics, registerPattern returns the panic text as an error.
func registerPattern(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// withSourceLine adds source lines to err, the error of http.ServeMux for the pattern of e. If the pattern conflicts
// with another pattern, the result has the source lines of both. Otherwise the result is err itself.
func (m *Mux[T]) withSourceLine(err error, pattern string, e *entry[T]) error {
	_, details, conflict := strings.Cut(err.Error(), "):\n")
	if !conflict {
		return err
	}
	for known, other := range m.all {
		pair := http.NewServeMux()
		if registerPattern(pair, known, other) == nil && registerPattern(pair, pattern, e) != nil {
			return fmt.Errorf("pattern %q (given at %s) conflicts with pattern %q (given at %s):\n%s", pattern, e.sourceLine, known, other.sourceLine, details)
		}
	}
	return err
}

// Find returns the value of the pattern that http.ServeMux would choose for a request with the given method, host and
// URL. It ignores patterns for which http.ServeMux would send a redirect. The result ok is false if no pattern matches.
//
// Some servers treat an unclean path, such as "//a" or "/x/../a", as "/a", and other servers do not. For an unclean
// path, Find returns the value for the clean path, and clean is false.
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
	value, ok = m.findClean(&http.Request{Method: cmp.Or(method, http.MethodGet), Host: httpattempt.HostOnly(host), URL: to})
	return value, to.Path == sent, ok
}

// cleanPath returns the path p without the elements "." and ".." and without repeated slashes. Many servers treat p as that
// path.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// findClean implements Find for a request with a clean path.
func (m *Mux[T]) findClean(req *http.Request) (value T, ok bool) {
	h, pattern := m.mux.Handler(req)
	if to, ok := h.(*entry[T]); ok {
		return to.value, true
	}
	if req.Method == http.MethodConnect && pattern != "" { // it is the path of a redirect, for example "/items/", not a pattern
		_, pattern = m.mux.Handler(&http.Request{Method: req.Method, Host: req.URL.Host, URL: req.URL.JoinPath("/")})
	}
	if m.all[pattern] == nil {
		return value, false
	}
	return m.withoutPattern(pattern).findClean(req) // the pattern only redirects, as from "/items" to "/items/"
}

// withoutPattern returns a Mux with all patterns of m except the given pattern. It is used for a request for which the
// given pattern would only send a redirect. It caches the result.
func (m *Mux[T]) withoutPattern(pattern string) *Mux[T] {
	if known, ok := m.subsets.Load(pattern); ok {
		return known.(*Mux[T])
	}
	others := &Mux[T]{mux: http.NewServeMux(), all: make(map[string]*entry[T])}
	for p, to := range m.all {
		if p != pattern {
			others.all[p] = to
			others.mux.Handle(p, to)
		}
	}
	known, _ := m.subsets.LoadOrStore(pattern, others)
	return known.(*Mux[T])
}
