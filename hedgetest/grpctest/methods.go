//go:build !hedge_nogrpc

package grpctest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gohedge/hedge"
)

// A Method is an entry of a [Table]. It holds whether calls of one gRPC method are hedged, and for which reason.
type Method struct {
	Name   string // full name, such as "/pkg.Service/Method"
	Hedges int    // maximum number of hedges of a call; 0: calls are not hedged
	Why    string // reason for Hedges, such as "WithMethods lists it"; the text may change between versions
}

// A Table lists gRPC methods and whether they are hedged, sorted by name. [Methods] returns it.
type Table []Method

// String returns the Table as text with one line per method: its name, "once" or the maximum number of hedges, and the
// reason. Tests can compare it with a reviewed copy.
func (all Table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, m := range all {
		times := "once"
		if m.Hedges > 0 {
			times = fmt.Sprintf("up to %d", m.Hedges)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.Name, times, m.Why)
	}
	w.Flush()
	return b.String()
}

// Methods returns a Table that shows for each gRPC method whether the Interceptor in hedges it. It lists the methods of
// all services whose descriptors are linked into the program, including client-streaming methods, which are never
// hedged.
//
// With patterns, such as "/shop.v1.Catalog/Get", "/shop.v1.Catalog/*" or "/shop.*", the Table contains only methods
// that match at least one pattern. The test fails for each pattern without a match.
//
// Use Methods in a test that compares the Table with a reviewed copy. The test then fails if a new method, a new name
// or a changed setting would make writes be sent twice.
func Methods(t testing.TB, in *hedge.Interceptor, patterns ...string) Table {
	t.Helper()
	var all Table
	matched := make([]bool, len(patterns))
	for _, file := range linkedFiles() {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); matchesAny(fullMethodName(m), patterns, matched) {
					all = append(all, newMethod(in, m))
				}
			}
		}
	}
	for i, p := range patterns {
		if !matched[i] {
			t.Errorf("hedgetest: Methods: no method that is linked in matches %q", p)
		}
	}
	slices.SortFunc(all, func(a, b Method) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// linkedFiles returns the descriptors of all protobuf files that are linked into the program. It returns a copy of the
// registry's list, because the registry is locked during an iteration, and callers may use it.
func linkedFiles() (files []protoreflect.FileDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		files = append(files, file)
		return true
	})
	return files
}

// fullMethodName returns the full name of a method, such as "/pkg.Service/Method".
func fullMethodName(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// newMethod returns the entry of a Table for the method m, with the decision of the Interceptor in.
func newMethod(in *hedge.Interceptor, m protoreflect.MethodDescriptor) Method {
	name := fullMethodName(m)
	if m.IsStreamingClient() {
		return Method{name, 0, "its client sends a stream"}
	}
	most, why := in.Hedges(name)
	return Method{name, most, why}
}

// matchesAny reports whether the name of a method matches at least one of the patterns, or there are no patterns. For
// each pattern that matches, it sets the element of matched with the same index to true.
func matchesAny(name string, patterns []string, matched []bool) bool {
	some := len(patterns) == 0
	for i, p := range patterns {
		prefix, all := strings.CutSuffix(p, "*")
		if p == name || all && strings.HasPrefix(name, prefix) {
			some, matched[i] = true, true
		}
	}
	return some
}
