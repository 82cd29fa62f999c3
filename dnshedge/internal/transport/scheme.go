package transport

import (
	"cmp"
	"maps"
	"slices"
)

// A Scheme is a kind of transport, named by the scheme of a server's URL.
type Scheme struct {
	Name string                 // scheme of the URL
	RFC  int                    // number of its RFC; Schemes and error messages have this order
	Port string                 // default port
	TLS  bool                   // servers have a TLS certificate
	Path string                 // default path of the URL; empty: a URL must have no path
	New  func(Config) Transport // opens no connection
}

// schemes holds the registered schemes by name.
var schemes = make(map[string]Scheme)

// registerScheme registers a scheme. Each transport calls it in an init function. Scheme.New wraps the result of
// newSender in the transports that all schemes share: ednsFallback and onceOnly.
func registerScheme(s Scheme, newSender func(Config) sender) {
	s.New = func(c Config) Transport { return &ednsFallback{Transport: onceOnly{newSender(c)}} }
	schemes[s.Name] = s
}

// FindScheme returns the scheme with the given name, and false if there is none.
func FindScheme(name string) (Scheme, bool) {
	s, ok := schemes[name]
	return s, ok
}

// Schemes returns all schemes, ordered by the number of their RFC.
func Schemes() []Scheme {
	return slices.SortedFunc(maps.Values(schemes), func(a, b Scheme) int { return cmp.Compare(a.RFC, b.RFC) })
}
