// Package grpctarget names the targets of gRPC connections. The same spelling may be several targets: "orders:443" is
// passthrough:///orders:443 for grpc.Dial and dns:///orders:443 for grpc.NewClient.
package grpctarget

import (
	"strings"
	"sync/atomic"
	"unsafe"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// Of returns the name of the target of cc: its canonical target and, if cc was made with one, the query. Resolvers may read a
// query, which ClientConn.CanonicalTarget leaves out. A nil cc has the name "". The name of a connection never changes.
func Of(cc *grpc.ClientConn) string {
	if cc == nil {
		return ""
	}
	slot := &recent[uintptr(unsafe.Pointer(cc))/unsafe.Sizeof(*cc)%uintptr(len(recent))]
	if e := slot.Load(); e != nil && e.cc.Value() == cc {
		return e.name
	}
	spelling, _, _ := strings.Cut(cc.Target(), "#")
	_, query, _ := strings.Cut(spelling, "?")
	name := withQuery(cc.CanonicalTarget(), query)
	slot.Store(&entry{weak.Make(cc), name})
	return name
}

// OfResolver returns the name that Of returns for a connection whose resolver is built for t.
func OfResolver(t resolver.Target) string { return withQuery(t.String(), t.URL.RawQuery) }

func withQuery(target, query string) string {
	if query == "" {
		return target
	}
	return target + "?" + query
}

// recent are names of connections, which cost an allocation otherwise. The address of a connection selects its element. An
// entry keeps no connection alive.
var recent [64]atomic.Pointer[entry]

type entry struct {
	cc   weak.Pointer[grpc.ClientConn]
	name string
}
