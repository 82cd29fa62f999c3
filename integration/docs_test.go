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

// recipePages matches the pages that hold recipes only. Other pages have them below the heading Recipes.
var recipePages = regexp.MustCompile(`/recipes[\w-]*\.md$`)

// withoutRecipe lists test files that belong to no recipe.
var withoutRecipe = []string{
	"coredns/quic_test.go", "docs_test.go", "slow_test.go", "elsewhere_test.go", "orca_test.go", "interop_test.go", "yaml_test.go",
	"ranges/store_test.go", "ranges/ranges_test.go", "ranges/refused_test.go",
}

// TestRecipesAreInTheTests checks that each recipe with code links a test file of this module, and that the linked
// files contain the code, line by line. For a file of a subdirectory, all Go files of that directory count. In a table,
// each row is a recipe, with its code in the second column. It also checks that every test file is linked.
func TestRecipesAreInTheTests(t *testing.T) {
	sections := recipeSections(t)
	require.NotEmpty(t, sections)

	snippet := regexp.MustCompile("(?s)```(?:go|corefile)\n(.*?)```")
	row := regexp.MustCompile(`(?m)^\| *(\[[^|]*/integration/[^|]*) \|(?: ` + "`([^`]*)`" + ` \|)?`)
	linked := make(map[string]bool)
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		code := linkedCode(t, section, linked)
		for _, s := range snippet.FindAllStringSubmatch(section, -1) {
			assert.True(t, strings.Contains(code, "\n"+unindented(s[1])), "%s: not in the linked files:\n%s", title, s[1])
		}
		for _, r := range row.FindAllStringSubmatch(section, -1) {
			assert.NotEmpty(t, r[2], "%s has no code", r[1])
			assert.True(t, strings.Contains(linkedCode(t, r[1], linked), r[2]), "%s: not in the file of %s:\n%s", title, r[1], r[2])
		}
	}

	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	modules, err := filepath.Glob("*/*_test.go")
	require.NoError(t, err)
	for _, file := range append(files, modules...) {
		if dir := filepath.Dir(file); dir != "resolvers" && dir != "endpoints" && !slices.Contains(withoutRecipe, file) {
			assert.True(t, linked[file], "no recipe links %s", file)
		}
	}
}

// linkedCode returns the lines of the test files that text links, and adds the names of these files to linked.
func linkedCode(t *testing.T, text string, linked map[string]bool) (code string) {
	t.Helper()
	link := regexp.MustCompile(`\]\(\.\./integration/((?:\w+/)*\w+_test\.go)\)`)
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		linked[m[1]] = true
		test := sourceOf(t, m[1])
		assert.True(t, strings.Contains(test, "\nfunc Test"), "%s has no test", m[1])
		code += test
		if dir := filepath.Dir(m[1]); dir != "." {
			files, err := filepath.Glob(dir + "/*.go")
			require.NoError(t, err)
			for _, file := range files {
				code += sourceOf(t, file)
			}
		}
	}
	return code
}

// recipeSections returns the sections of recipePages, and those below the heading Recipes of other pages. A section
// begins with its title.
func recipeSections(t *testing.T) (sections []string) {
	pages, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	heading := regexp.MustCompile(`(?m)^##+ `)
	for _, page := range pages {
		src, err := os.ReadFile(page)
		require.NoError(t, err)
		text := string(src)
		if !recipePages.MatchString(filepath.ToSlash(page)) {
			_, text, _ = strings.Cut(text, "\n## Recipes\n")
			text, _, _ = strings.Cut(text, "\n## ")
		}
		sections = append(sections, heading.Split(text, -1)[1:]...)
	}
	return sections
}

// sourceOf returns the lines of a file without the white space around them.
func sourceOf(t *testing.T, file string) string {
	t.Helper()
	src, err := os.ReadFile(file)
	require.NoError(t, err)
	return unindented(string(src))
}

// unindented returns s without the white space around its lines.
func unindented(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}
