// Package pattern finds what belongs to a request by the patterns of [http.ServeMux].
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

// Add adds a pattern, which a line of a program has given. Its error says which lines gave patterns that conflict.
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
		return m.placed(err, pattern, e)
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

// placed returns why a pattern was refused, with the lines that gave it and the one that it conflicts with, where a ServeMux says
// which line of this package it was given by.
func (m *Mux[T]) placed(err error, pattern string, e *entry[T]) error {
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

// Find returns the value for a request to a host: that of the pattern whose handler a ServeMux would call. A pattern to whose path it would
// redirect is not meant.
//
// Of servers that get an unclean path, such as "//a" or "/x/../a", some take it for "/a", and others for something else. So it has
// the value of "/a", and Find says that it is not clean.
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

// cleanPath returns the path that servers which clean paths take p for.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// serving returns the value that serves a request with a clean path.
func (m *Mux[T]) serving(req *http.Request) (value T, ok bool) {
	h, pattern := m.mux.Handler(req)
	if to, ok := h.(*entry[T]); ok {
		return to.value, true
	}
	if pattern == "" {
		return value, false
	}
	return m.without(pattern).serving(req) // as nobody follows the redirect from "/items" to "/items/"
}

// without returns a Mux with the other patterns than that one.
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
