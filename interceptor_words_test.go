package hedge_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocumentsHaveTheReadingWords compares the words that begin the names of methods that read with the two places that
// list them for users: the doc comment of WithMethods and docs/protocols.md.
func TestDocumentsHaveTheReadingWords(t *testing.T) {
	words := append(readingWords(t), "BatchGet") // which can be two words to the code
	sentence := regexp.MustCompile(`first word (?:must be|is) ((?:\w+, )+\w+) or (\w+)`)
	for place, text := range map[string]string{
		"the doc comment of WithMethods": strings.ReplaceAll(sources(t, "*.go"), "\n// ", " "),
		"docs/protocols.md":              strings.ReplaceAll(sources(t, "docs/protocols.md"), "\n", " "),
	} {
		found := sentence.FindStringSubmatch(text)
		require.NotNil(t, found, "%s does not say what a name's first word must be", place)
		documented := append(strings.Split(found[1], ", "), found[2])
		for _, word := range words {
			if !slices.Contains(documented, word) {
				t.Errorf("%s lacks the reading word %q: %q", place, word, found[0])
			}
		}
		for _, word := range documented {
			if !slices.Contains(words, word) {
				t.Errorf("%s lists %q, which is no reading word: %q", place, word, found[0])
			}
		}
	}
}

// readingWords returns the strings of the variable of this name.
func readingWords(t *testing.T) (words []string) {
	root, err := filepath.Glob("interceptor*.go")
	require.NoError(t, err)
	inner, err := filepath.Glob("internal/readonly/*.go")
	require.NoError(t, err)
	for _, name := range append(root, inner...) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name != "readingWords" {
				return true
			}
			ast.Inspect(spec, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					words = append(words, strings.Fields(text)...)
				}
				return true
			})
			return false
		})
	}
	require.NotEmpty(t, words)
	return words
}
