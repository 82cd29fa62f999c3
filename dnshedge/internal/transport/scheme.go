package transport

import (
	"cmp"
	"maps"
	"slices"
)

// A Scheme describes a protocol over which queries can be sent, as a URL scheme selects it, for example "tls".
type Scheme struct {
	Name string                 // URL scheme
	RFC  int                    // number of the RFC that specifies the protocol; schemes are sorted by it
	Port string                 // default port of a server
	TLS  bool                   // servers are authenticated by a TLS certificate
	Path string                 // default URL path; empty: a URL must have no path
	New  func(Config) Transport // returns a Transport to a server; it opens no connection
}

// schemes holds the registered schemes by Name. It must only be changed during initialization.
var schemes = make(map[string]Scheme)

// registerScheme makes the scheme s available to FindScheme and Schemes. It must only be called by init functions.
//
// It sets s.New to a function that creates the Transport for a server. That function calls newSender, and adds the
// behaviour of onceOnlyTransport and ednsFallback, which all schemes need.
func registerScheme(s Scheme, newSender func(Config) sender) {
	s.New = func(c Config) Transport { return &ednsFallback{Transport: onceOnlyTransport{newSender(c)}} }
	schemes[s.Name] = s
}

// FindScheme returns the scheme for a URL scheme, for example "tls". It returns false if the scheme is unknown.
func FindScheme(name string) (Scheme, bool) {
	s, ok := schemes[name]
	return s, ok
}

// Schemes returns all schemes, sorted by the number of their RFC.
func Schemes() []Scheme {
	return slices.SortedFunc(maps.Values(schemes), func(a, b Scheme) int { return cmp.Compare(a.RFC, b.RFC) })
}
