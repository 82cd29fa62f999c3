package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTablesOfDocumentsAreReplaced(t *testing.T) {
	readme, other := filepath.Join(t.TempDir(), "README.md"), filepath.Join(t.TempDir(), "benchmarks.md")
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) }
	read := func(file string) string {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}
	runs := make(map[string]int)
	fill := func(t documentTable) (renderedTable, error) {
		runs[t.name]++
		return renderedTable{body: "new " + t.name + " $1\n"}, nil
	}

	write(readme, "a\n<!-- table:reference -->\nold\n<!-- /table -->\nb\n<!-- table:cost -->\n<!-- /table -->\nc\n")
	write(other, "<!-- table:reference -->\n<!-- /table -->\n<!-- table:dns -->\nold\n<!-- /table -->")
	require.NoError(t, updateDocuments([]string{readme, other}, fill))
	require.NoError(t, updateDocuments([]string{readme}, fill), "and again")
	assert.Equal(t, "a\n<!-- table:reference -->\nnew reference $1\n<!-- /table -->\nb\n<!-- table:cost -->\nnew cost $1\n<!-- /table -->\nc\n", read(readme))
	assert.Equal(t, "<!-- table:reference -->\nnew reference $1\n<!-- /table -->\n<!-- table:dns -->\nnew dns $1\n<!-- /table -->", read(other))
	assert.Equal(t, map[string]int{"reference": 2, "cost": 2, "dns": 1}, runs, "a table in two files is filled in once")

	broken := errors.New("too busy")
	before := read(readme)
	assert.ErrorIs(t, updateDocuments([]string{readme}, func(documentTable) (renderedTable, error) { return renderedTable{}, broken }), broken)
	assert.Equal(t, before, read(readme), "a file is written whole or not at all")
}

func TestFilesWithoutProperTablesAreRefusedBeforeAnythingRuns(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.md")
	require.NoError(t, os.WriteFile(good, []byte("<!-- table:reference -->\n<!-- /table -->\n"), 0o644))
	for text, says := range map[string]string{
		"<!-- table:unknown -->\n<!-- /table -->\n": `"unknown"`,
		"no marker":                              "found 0 <!-- table:NAME -->",
		"<!-- table:reference -->\nnot closed\n": "1 <!-- table:NAME --> and 0 <!-- /table -->",
		"<!-- /table -->":                        "0 <!-- table:NAME --> and 1",
		"<!-- table:reference -->\n<!-- table:dns -->\n<!-- /table -->\n":               "2 <!-- table:NAME --> and 1",
		"<!-- table:reference -->\n<!-- /table -->\n<!-- /table -->\n":                  "1 <!-- table:NAME --> and 2",
		"<!-- table:reference -->\n<!-- /table -->\n<!-- table:Dns --> <!-- /table -->": "2 <!-- table:NAME --> and 2",
	} {
		file := filepath.Join(t.TempDir(), "bad.md")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		_, stderr, code := runSimulate(t, "-readme", good+","+file)
		assert.Equal(t, exitFailed, code, text)
		assert.Contains(t, stderr, says)
		assert.Contains(t, stderr, file)
	}
	_, stderr, code := runSimulate(t, "-readme", good+",")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "-readme")
}

// readPages returns the texts of the documents of the repository by their paths.
func readPages(t *testing.T) map[string]string {
	texts := make(map[string]string)
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/design/*.md"} {
		pages, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, page := range pages {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			texts[page] = string(text)
		}
	}
	return texts
}

func TestTablesOfAllPagesAreKnown(t *testing.T) {
	tables := 0
	for page, text := range readPages(t) {
		if n := strings.Count(text, tableOpening); n > 0 {
			tables += n
			_, err := readDocument(page)
			assert.NoError(t, err, page)
		}
	}
	assert.Len(t, documentTables, tables)
}

func TestTablesCiteTheirRun(t *testing.T) {
	m := documentMeasurer{ctx: t.Context(), resultsByArgs: make(map[string]engineResults)}
	const args = "-engine virtual -requests 2000 -runs 2 -strategy none,hedge"
	table, err := m.regenerateTable(documentTable{args: args, render: formatReferenceTable})
	require.NoError(t, err)
	for _, s := range []string{
		"| **hedge** |", "`go run ./benchmark/simulate -engine virtual", "go1.", "cores", "medians of 2 runs", time.Now().Format(time.DateOnly),
	} {
		assert.Contains(t, table.body, s)
	}
	m.ctx = nil // a second run would fail
	again, err := m.regenerateTable(documentTable{args: args, render: formatReferenceTable, citedCommand: "make it", basis: "one run"})
	require.NoError(t, err)
	assert.Contains(t, again.body, "`make it`; ")
	assert.Contains(t, again.body, "; one run.")
	for _, known := range documentTables {
		if known.args != "" {
			_, err := parseOptions(strings.Fields(known.args), os.Stderr)
			assert.NoError(t, err, known.name)
		}
	}
}

func TestPictureIsWrittenBesideItsDocument(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "docs"), 0o755))
	file := filepath.Join(dir, "README.md")
	require.NoError(t, os.WriteFile(file, []byte("<!-- table:headline -->\n<!-- /table -->\n"), 0o644))
	require.NoError(t, updateDocuments([]string{file}, func(documentTable) (renderedTable, error) {
		return renderedTable{body: "new\n", picture: []byte("<svg/>")}, nil
	}))
	got, err := os.ReadFile(filepath.Join(dir, "docs", "tail.svg"))
	require.NoError(t, err)
	assert.Equal(t, "<svg/>", string(got))
}

func TestCostsAreReadFromBenchmarks(t *testing.T) {
	const out = `goos: linux
BenchmarkNoHedge/http2/bare-8     	100	 70 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http2/hedge-8    	100	500 ns/op	 500 B/op	 4 allocs/op
PASS
BenchmarkNoHedge/http2/bare-8     	100	 90 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http2/hedge-8    	100	540 ns/op	 500 B/op	 4 allocs/op
BenchmarkNoHedge/http2/bare-8     	100	 80 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http2/hedge-8    	100	520 ns/op	 500 B/op	 4 allocs/op
`
	res := parseBenchmark([]byte(out))
	assert.Contains(t, formatCostTable(res), "| **hedge** | – | – | 440 ns ±20, 3 allocations | – | – | – |")
}

// TestCommandsInDocumentsParse checks that this command accepts the arguments with which documents name it.
func TestCommandsInDocumentsParse(t *testing.T) {
	command := regexp.MustCompile("go run \\./benchmark/simulate\\b([^`#\n]*)")
	commands := 0
	for page, text := range readPages(t) {
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			commands++
			_, err := parseOptions(strings.Fields(m[1]), io.Discard)
			assert.NoError(t, err, "%s: %s", page, m[0])
		}
	}
	assert.Greater(t, commands, 10)
}
