package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRecipesAreInTheTests keeps the recipes true: each section names a test and its file, and the file contains the
// snippets of the section, line by line. If the recipe is a module of its own, one of its files does.
func TestRecipesAreInTheTests(t *testing.T) {
	var sections []string
	for _, name := range []string{"recipes.md", "recipes-data.md", "recipes-ranges.md"} {
		doc, err := os.ReadFile("../docs/" + name)
		require.NoError(t, err)
		sections = append(sections, strings.Split(string(doc), "\n## ")[1:]...)
	}
	for _, name := range []string{"endpoints.md", "limiter.md"} { // where recipes are a part
		doc, err := os.ReadFile("../docs/" + name)
		require.NoError(t, err)
		_, part, _ := strings.Cut(string(doc), "\n## Recipes\n")
		sections = append(sections, strings.Split(part, "\n### ")[1:]...)
	}
	require.NotEmpty(t, sections)

	named := regexp.MustCompile(`\[(Test\w+)\]\(\.\./integration/((?:\w+/)?\w+_test\.go)\)`)
	snippet := regexp.MustCompile("(?s)```(?:go|corefile)\n(.*?)```")
	recipes := make(map[string]bool)
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		test := named.FindStringSubmatch(section)
		require.NotNil(t, test, "%s names no test", title)
		recipes[test[2]] = true
		files := []string{test[2]}
		if dir := filepath.Dir(test[2]); dir != "." {
			var err error
			files, err = filepath.Glob(dir + "/*.go")
			require.NoError(t, err)
		}
		code := ""
		for _, file := range files {
			src, err := os.ReadFile(file)
			require.NoError(t, err, title)
			code += unindented(string(src))
		}
		assert.True(t, strings.Contains(code, "\nfunc "+test[1]+"(t *testing.T) {\n"), "%s: %s is not in %s", title, test[1], test[2])
		snippets := snippet.FindAllStringSubmatch(section, -1)
		assert.NotEmpty(t, snippets, title)
		for _, s := range snippets {
			assert.True(t, strings.Contains(code, "\n"+unindented(s[1])), "%s: not in %s:\n%s", title, test[2], s[1])
		}
	}

	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	modules, err := filepath.Glob("*/*_test.go")
	require.NoError(t, err)
	noRecipes := []string{"resolvers", "endpoints"}
	modules = slices.DeleteFunc(modules, func(file string) bool { return slices.Contains(noRecipes, filepath.Dir(file)) })
	for _, file := range append(files, modules...) {
		switch file {
		case "docs_test.go", "slow_test.go", "elsewhere_test.go", "orca_test.go", "interop_test.go", "yaml_test.go", "ranges/store_test.go", "ranges/ranges_test.go", "ranges/refused_test.go", "serviceconfig/scripts_test.go", "serviceconfig/serviceconfig_test.go": // no recipes
		default:
			assert.True(t, recipes[file], "%s has no section", file)
		}
	}
}

// unindented returns s without the white space around its lines.
func unindented(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}
