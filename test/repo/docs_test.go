package repo_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// snippetImports are the packages that snippets may use.
var snippetImports = []string{
	"context", "fmt", "log", "log/slog", "net", "net/http", "os", "time", "google.golang.org/grpc", module, module + "/debug", module + "/dnshedge", module + "/dnshedge/dnssec", module + "/dnshedge/forward", module + "/dnshedge/grpcnames", module + "/dnshedge/names", module + "/dnshedge/recursor", module + "/observe", module + "/rangeread", module + "/steering",
}

// TestSnippetsInDocumentsCompile type-checks every go block as the body of a function.
// It declares the names that a snippet uses and does not define. Recipes are compared with module integration, and
// docs/testing.md with the tests of package hedgetest.
func TestSnippetsInDocumentsCompile(t *testing.T) {
	const given = `
type Rows []string
func query(context.Context) (Rows, error) { return nil, nil }
var (
	ctx    context.Context
	target string
	creds  grpc.DialOption

	us, asia *grpc.ClientConn

	metrics hedge.Observer
	mux     *http.ServeMux

	n         *names.Names
	transport *hedge.Transport
	sign      func(*http.Request) error
	events    chan struct{}
	service   any // an openfeature.EvaluationContext
	flags     interface { // an openfeature.Client
		String(ctx context.Context, flag, fallback string, of any) string
		Float(ctx context.Context, flag string, fallback float64, of any) float64
	}
)
`
	var all strings.Builder
	for _, name := range documents(t) {
		if !strings.HasPrefix(name, "docs/recipes") && name != "docs/testing.md" {
			all.WriteString(withoutRecipes(sources(t, name)))
		}
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(all.String(), -1)
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
			// A soft error, such as a variable that is not used, is fine in a snippet.
			if e, ok := err.(types.Error); !ok || !e.Soft {
				t.Errorf("%v in\n%s", err, code)
			}
		}}
		_, _ = conf.Check("snippet", fset, []*ast.File{file}, nil)
	}
}

// withoutRecipes returns a document without its section Recipes.
func withoutRecipes(doc string) string {
	before, recipes, _ := strings.Cut(doc, "\n## Recipes\n")
	_, after, found := strings.Cut(recipes, "\n## ")
	if found {
		after = "\n## " + after
	}
	return before + after
}

// TestREADMEIsOnePage keeps README short, and its commands where .ci/newcomer finds them.
func TestREADMEIsOnePage(t *testing.T) {
	readme := sources(t, "README.md")
	assert.LessOrEqual(t, len(readme), 7000, "bytes")
	for _, line := range []string{"<!-- table:headline -->", "go run ./benchmark/simulate", "go test ./..."} {
		doubles.AssertContains(t, "README.md", readme, "\n"+line+"\n") // on a line of its own
	}
	for _, module := range []string{module, module + "/hedgeprom", module + "/hedgeotel"} {
		doubles.AssertContains(t, "README.md", readme, "\ngo get "+module+" ")
	}
}

// TestDocumentsNameTestsThatExist keeps ARCHITECTURE.md and the files in docs true.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	doc := sources(t, documents(t)...)
	exist := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^func ((Test|Fuzz)\w+)`).FindAllStringSubmatch(sources(t, "*.go", "*/*.go", "*/*/*.go", "*/*/*/*.go"), -1) {
		exist[m[1]] = true
	}
	names := regexp.MustCompile(`\b(Test|Fuzz)[A-Z]\w+`).FindAllString(doc, -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		assert.True(t, exist[name], "%s does not exist", name)
	}
}

// TestLinksInDocumentsLeadSomewhere checks the files and headings that documents link to, and their pictures.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`(?:\]\(|src=")([^)"\s]*)[)"]`)
	code := regexp.MustCompile("(?s)```.*?```")
	links := 0
	for _, doc := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(sources(t, doc), ""), -1) {
			file, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			links++
			target := doc
			if file != "" {
				target = path.Join(path.Dir(doc), file)
			}
			if _, err := os.Stat(target); assert.NoError(t, err, "%s links to %s", doc, m[1]) && heading != "" {
				assert.True(t, slices.Contains(headings(sources(t, target)), heading), "%s links to %s, which has no such heading", doc, m[1])
			}
		}
	}
	assert.Greater(t, links, 20)
}

// headings returns the names by which the headings of a document are linked to.
func headings(doc string) (names []string) {
	doc = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(doc, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(doc, -1) {
		name := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		names = append(names, regexp.MustCompile(`[^\w-]`).ReplaceAllString(name, ""))
	}
	return names
}

// TestNoPageIsLong keeps each page of docs below 15 kB, and README, which is one page, below 7,000 bytes.
func TestNoPageIsLong(t *testing.T) {
	for _, file := range documents(t) {
		limit := 15_000
		switch {
		case file == "README.md":
			limit = 7000
		case !strings.HasPrefix(file, "docs/"):
			continue
		}
		assert.LessOrEqual(t, len(sources(t, file)), limit, file)
	}
}

// TestPackageDocListsEveryOption compares the lists of options in the package documentation with the options, and the list
// of those for every day with docs/options.md.
func TestPackageDocListsEveryOption(t *testing.T) {
	var exist []string
	for _, m := range regexp.MustCompile(`(?m)^func (With\w+)\(.*\) \w*Option \{`).FindAllStringSubmatch(sources(t, "*.go"), -1) {
		if m[1] != "WithHTTPOptions" && m[1] != "WithGRPCOptions" { // the doc comment of WithOptions suffices
			exist = append(exist, m[1])
		}
	}
	_, list, _ := strings.Cut(sources(t, "hedge.go"), "\n// Every day:\n")
	list, _, _ = strings.Cut(list, "\n// # ")
	everyDay, advanced, found := strings.Cut(list, "\n// Advanced:\n")
	require.True(t, found)
	option := regexp.MustCompile(`\[(With\w+)\]`)
	names := func(text string) (all []string) {
		for _, m := range option.FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	doubles.AssertSameNames(t, "the package documentation", exist, append(names(everyDay), names(advanced)...))

	var table []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(With\\w+)\\(").FindAllStringSubmatch(sources(t, "docs/options.md"), -1) {
		table = append(table, m[1])
	}
	doubles.AssertSameNames(t, "docs/options.md", names(everyDay), table)
}

// TestTuningTableHasDefaultsOfConfig compares the table of settings in docs/options.md with [hedge.DefaultConfig].
func TestTuningTableHasDefaultsOfConfig(t *testing.T) {
	settings := reflect.ValueOf(hedge.DefaultConfig())
	rows := regexp.MustCompile("(?m)^\\| `([A-Z]\\w+)` \\((\\S+)\\) \\|").FindAllStringSubmatch(sources(t, "docs/options.md"), -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		field := settings.FieldByName(row[1])
		require.True(t, field.IsValid(), "Config has no field %s", row[1])
		value := fmt.Sprint(field.Interface())
		if value == "-1" || value == "-1ns" { // hedge.Unset
			value = "none"
		}
		assert.Equal(t, value, row[2], row[1])
	}
}

// TestActionsArePinned keeps workflows from running code that a moved tag brings in.
func TestActionsArePinned(t *testing.T) {
	uses := regexp.MustCompile(`(?m)\buses: .*$`).FindAllString(sources(t, ".github/workflows/*.yml"), -1)
	require.NotEmpty(t, uses)
	for _, u := range uses {
		assert.Regexp(t, `^uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`, u)
	}
}

// documents returns the names of all documents: the Markdown files of the repository outside testdata and folders that git ignores.
func documents(t *testing.T) (names []string) {
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"testdata", "out", "dist"}, d.Name()) || strings.HasPrefix(name, ".") && name != "." && name != ".github"):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".md"):
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	}))
	return names
}
