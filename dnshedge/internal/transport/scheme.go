package transport

import (
	"cmp"
	"maps"
	"slices"
)

// A Scheme is a kind of transport, and how a URL of its servers is read.
type Scheme struct {
	Name string // as in URLs
	RFC  int    // that specifies it; messages name the schemes in this order
	Port string // of servers whose URL has none
	TLS  bool   // servers have a certificate
	Path string // of servers whose URL has none; empty: URLs must not have a path
	New  func(Config) Transport
}

var schemes = make(map[string]Scheme)

// registerScheme registers a scheme when the program starts. Each transport's file calls it. The rules that all
// transports share wrap the sender of newSender.
func registerScheme(s Scheme, newSender func(Config) sender) {
	s.New = func(c Config) Transport { return &ednsFallback{Transport: onceOnly{newSender(c)}} }
	schemes[s.Name] = s
}

// FindScheme returns the scheme of that name.
func FindScheme(name string) (Scheme, bool) {
	s, ok := schemes[name]
	return s, ok
}

// Schemes returns all schemes.
func Schemes() []Scheme {
	return slices.SortedFunc(maps.Values(schemes), func(a, b Scheme) int { return cmp.Compare(a.RFC, b.RFC) })
}
