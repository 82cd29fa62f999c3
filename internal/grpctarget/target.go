// Package grpctarget returns unique names for the targets of gRPC connections. The text that a program dials does not
// identify a target: "orders:443" is passthrough:///orders:443 for grpc.Dial and dns:///orders:443 for grpc.NewClient.
package grpctarget

import (
	"strings"
	"sync/atomic"
	"unsafe"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// Name returns a name that identifies the target of cc. It is the canonical target, followed by ? and the query if the
// target has a query. [grpc.ClientConn.CanonicalTarget] omits the query, although a resolver may use it. The name of a
// nil cc is "".
func Name(cc *grpc.ClientConn) string {
	if cc == nil {
		return ""
	}
	slot := &nameCache[uintptr(unsafe.Pointer(cc))/unsafe.Sizeof(*cc)%uintptr(len(nameCache))]
	if e := slot.Load(); e != nil && e.cc.Value() == cc {
		return e.name
	}
	spelling, _, _ := strings.Cut(cc.Target(), "#")
	_, query, _ := strings.Cut(spelling, "?")
	name := withQuery(cc.CanonicalTarget(), query)
	slot.Store(&cacheEntry{weak.Make(cc), name})
	return name
}

// ResolverName returns the name of target t for a resolver. It equals the [Name] of the connections to that target.
func ResolverName(t resolver.Target) string { return withQuery(t.String(), t.URL.RawQuery) }

// withQuery appends ? and the query to a target, unless the query is empty.
func withQuery(target, query string) string {
	if query == "" {
		return target
	}
	return target + "?" + query
}

// nameCache caches results of [Name], because computing a name allocates. The address of a connection selects its
// element. The cache holds weak pointers, so it does not keep connections in memory.
var nameCache [64]atomic.Pointer[cacheEntry]

// A cacheEntry holds the name of the target of one connection.
type cacheEntry struct {
	cc   weak.Pointer[grpc.ClientConn]
	name string
}
