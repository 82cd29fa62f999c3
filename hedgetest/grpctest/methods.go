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

// A Method says whether calls of a method are hedged, and why.
type Method struct {
	Name   string // such as "/pkg.Service/Method"
	Hedges int    // how many a call gets at most; 0: it is sent once
	Why    string // the rule: "WithMethods lists it"; its words can change with the version
}

// A Table says of each method whether it is hedged, in the order of the names.
type Table []Method

// String returns a line for each method: its name, "once" or how many hedges a call gets at most, and why.
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

// Methods returns what in does with the methods of all services whose descriptors are linked into the program: those of the generated
// code that it imports. With patterns, such as "/shop.v1.Catalog/Get", "/shop.v1.Catalog/*" or "/shop.*", it is the methods that match one of
// them; the test fails for each pattern that matches none. Streams from the client, which are never hedged, are in the table as well.
//
// It is for a test that compares the table with one that was read by people: then a new method, a new name or another
// setting that has writes sent twice does not go unnoticed.
func Methods(t testing.TB, in *hedge.Interceptor, patterns ...string) Table {
	t.Helper()
	var all Table
	matched := make([]bool, len(patterns))
	for _, file := range linkedFiles() {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); matchesAny(nameOf(m), patterns, matched) {
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

// linkedFiles returns the descriptors of all files that are linked in. It copies them, because a reader inside the range could lock the registry again.
func linkedFiles() (files []protoreflect.FileDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		files = append(files, file)
		return true
	})
	return files
}

// nameOf returns the name of a method as calls have it.
func nameOf(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// newMethod returns the row of a method in the table.
func newMethod(in *hedge.Interceptor, m protoreflect.MethodDescriptor) Method {
	name := nameOf(m)
	if m.IsStreamingClient() {
		return Method{name, 0, "its client sends a stream"}
	}
	most, why := in.Hedges(name)
	return Method{name, most, why}
}

// matchesAny reports whether a name matches one of the patterns, or there are none. It notes which ones match.
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
