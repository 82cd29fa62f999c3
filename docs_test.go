package hedge_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// snippetImports are the packages that snippets may speak of.
var snippetImports = []string{
	"context", "fmt", "log", "net", "net/http", "os", "time", "google.golang.org/grpc", module, module + "/debug", module + "/dnshedge",
}

// TestSnippetsInDocumentsCompile type-checks every go block as the body of a function.
// Names that a snippet leaves to the reader are declared here.
func TestSnippetsInDocumentsCompile(t *testing.T) {
	const given = `
type Rows []string
func query(context.Context) (Rows, error) { return nil, nil }
var (
	ctx    context.Context
	target string
	creds  grpc.DialOption

	metrics hedge.Observer
	mux     *http.ServeMux

	transport *hedge.Transport
	flags     interface{ OnChange(func(on bool, percent float64)) }
)
`
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(sources(t, "README.md", "docs/operations.md"), -1)
	require.NotEmpty(t, blocks)

	out, err := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, snippetImports...)...).Output()
	require.NoError(t, err)
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[pkg] = file
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(p string) (io.ReadCloser, error) { return os.Open(exports[p]) })

	for _, block := range blocks {
		code := block[1]
		var src strings.Builder
		src.WriteString("package snippet\n")
		for _, p := range snippetImports {
			if name := path.Base(p); strings.Contains(given+code, name+".") {
				fmt.Fprintf(&src, "import %q\n", p)
			}
		}
		fmt.Fprintf(&src, "%s\nfunc _() {\n%s\n}\n", given, code)
		file, err := parser.ParseFile(fset, "snippet.go", src.String(), 0)
		require.NoError(t, err, "%s", code)
		conf := types.Config{Importer: imports, Error: func(err error) {
			// A snippet may declare what it does not use: that is for the reader.
			if e, ok := err.(types.Error); !ok || !e.Soft {
				t.Errorf("%v in\n%s", err, code)
			}
		}}
		_, _ = conf.Check("snippet", fset, []*ast.File{file}, nil)
	}
}

// TestDocumentsNameTestsThatExist keeps ARCHITECTURE.md and what is in docs true.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	doc := sources(t, "ARCHITECTURE.md", "docs/*.md")
	exist := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^func ((Test|Fuzz)\w+)`).FindAllStringSubmatch(sources(t, "*.go", "*/*.go", "*/*/*.go"), -1) {
		exist[m[1]] = true
	}
	names := regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w+`).FindAllString(doc, -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.True(t, exist[name], "%s does not exist", name)
	}
}

// TestEveryOptionIsInREADME keeps the options table whole.
func TestEveryOptionIsInREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	options := regexp.MustCompile(`(?m)^func (With\w+)\(.*\) Option`).FindAllStringSubmatch(sources(t, "*.go"), -1) // other packages document theirs themselves
	require.Greater(t, len(options), 20)
	for _, m := range options {
		assert.Contains(t, string(readme), "| `"+m[1]+"(")
	}
}

// TestTuningKnowsEveryNumberAndItsDefault keeps docs/operations.md's table of settings whole.
func TestTuningKnowsEveryNumberAndItsDefault(t *testing.T) {
	doc := sources(t, "docs/operations.md")
	v := reflect.ValueOf(hedge.DefaultConfig())
	for i := range v.NumField() {
		value := fmt.Sprint(v.Field(i).Interface())
		if v.Field(i).Kind() == reflect.String {
			continue // a name, of which there is no more and no less
		}
		if v.Field(i).IsZero() {
			value = "none"
		}
		assert.Contains(t, doc, fmt.Sprintf("\n| `%s` (%s) |", v.Type().Field(i).Name, value))
	}
}
