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

// A Method describes whether calls of a gRPC method are hedged, and why.
type Method struct {
	Name   string // such as "/pkg.Service/Method"
	Hedges int    // maximum number of hedges of a call; 0: calls are sent once
	Why    string // reason, such as "WithMethods lists it"; the text may change between versions
}

// A Table lists methods, sorted by name.
type Table []Method

// String returns one line per method: its name, "once" or the maximum number of hedges, and the reason.
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

// Methods returns a Table of the methods of all services whose descriptors are linked into the program, and how in
// treats them. Client-streaming methods, which are never hedged, are included.
//
// With patterns, such as "/shop.v1.Catalog/Get", "/shop.v1.Catalog/*" or "/shop.*", the Table contains only methods
// that match one of them. The test fails for each pattern without a match.
//
// Use it in a test that compares the Table with a reviewed copy. The test then fails if a new method, a new name or a
// changed setting would make writes be sent twice.
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

// linkedFiles returns the descriptors of all files linked into the program. It returns a copy, because callers may use
// the registry, which is locked while it is iterated.
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

// newMethod returns the row of a method in a Table.
func newMethod(in *hedge.Interceptor, m protoreflect.MethodDescriptor) Method {
	name := fullMethodName(m)
	if m.IsStreamingClient() {
		return Method{name, 0, "its client sends a stream"}
	}
	most, why := in.Hedges(name)
	return Method{name, most, why}
}

// matchesAny reports whether a name matches at least one of the patterns, or there are no patterns. It sets the
// elements of matched for matching patterns.
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
