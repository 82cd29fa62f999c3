//go:build !hedge_nogrpc

package repo_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/readonly"
)

// TestDocumentsHaveTheReadingWords compares the words that begin the names of methods that read with the two places that
// list them for users: the doc comment of WithMethods and docs/http-grpc.md.
func TestDocumentsHaveTheReadingWords(t *testing.T) {
	words := readonly.ReadingWords()
	sentence := regexp.MustCompile(`first word (?:must be|is) ((?:\w+, )+\w+) or (\w+)`)
	for place, text := range map[string]string{
		"the doc comment of WithMethods": strings.ReplaceAll(sources(t, "*.go"), "\n// ", " "),
		"docs/http-grpc.md":              strings.ReplaceAll(sources(t, "docs/http-grpc.md"), "\n", " "),
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
