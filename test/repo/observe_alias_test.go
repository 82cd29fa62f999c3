package repo_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:generate go test -run TestObserveHasTheNamesOfPackageObserve -update .

var update = flag.Bool("update", false, "write observe.go anew")

const observeHead = `// Code generated from package observe by go generate ./test/repo; DO NOT EDIT.

package hedge

import "github.com/gohedge/hedge/observe"

// The events that observers receive. The types are those of package observe, which package
// dnshedge uses as well: one Observer serves HTTP, gRPC, functions and DNS.
`

// TestObserveHasTheNamesOfPackageObserve holds observe.go to what package observe says of
// hedging: an alias of each type, and each constant. With -update it writes the file.
func TestObserveHasTheNamesOfPackageObserve(t *testing.T) {
	var types, constants bytes.Buffer
	for _, name := range []string{"observe/observe.go", "observe/client.go", "observe/audit.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			switch d, _ := decl.(*ast.GenDecl); {
			case d == nil:
			case d.Tok == token.TYPE:
				typ := d.Specs[0].(*ast.TypeSpec).Name.Name
				first := new(doc.Package).Synopsis(d.Doc.Text())
				fmt.Fprintf(&types, "\t// %s\n\t%s = observe.%[2]s\n", linked(first), typ)
			case d.Tok == token.CONST:
				fmt.Fprintf(&constants, "\n// %sconst (\n", d.Doc.Text())
				for _, s := range d.Specs {
					c := s.(*ast.ValueSpec)
					fmt.Fprintf(&constants, "\t%s = observe.%[1]s // %s", c.Names[0].Name, linked(c.Comment.Text()))
				}
				constants.WriteString(")\n")
			}
		}
	}
	want, err := format.Source([]byte(observeHead + "type (\n" + types.String() + ")\n" + constants.String()))
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("observe.go", want, 0o644))
	}
	has := sources(t, "observe.go")
	for line := range strings.Lines(string(want)) {
		if !strings.Contains(has, line) {
			t.Errorf("observe.go does not have the line below; run go generate ./test/repo\n%s", line)
		}
	}
	require.True(t, t.Failed() || has == string(want), "observe.go has what package observe does not have; run go generate ./test/repo")
}

// linked returns a comment of package observe with the links that it has in this package.
func linked(comment string) string {
	comment = regexp.MustCompile(`\bhedge\.([A-Z]\w*(\.[A-Z]\w*)?)`).ReplaceAllString(comment, "[$1]")
	return regexp.MustCompile(`(^|[^\[\w])(Denied\w+)`).ReplaceAllString(comment, "$1[$2]")
}
