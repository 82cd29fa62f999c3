package repo_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPagesStayShort limits the words of the pages for users together, and of the pages about the design. Words are counted as by
// wc -w.
func TestPagesStayShort(t *testing.T) {
	assert.LessOrEqual(t, len(strings.Fields(sources(t, "docs/*.md"))), 12_000, "words of docs/*.md")
	assert.LessOrEqual(t, len(strings.Fields(sources(t, "docs/design/*.md"))), 10_000, "words of docs/design/*.md")
}

// TestPagesNameNoTests checks that the text of pages does not name tests, except of those for people who change the code. Code may
// have a test.
func TestPagesNameNoTests(t *testing.T) {
	test, code := regexp.MustCompile(`\bTest[A-Z]\w+`), regexp.MustCompile("(?s)```.*?```")
	for _, page := range documents(t) {
		if page != "ARCHITECTURE.md" && page != "CONTRIBUTING.md" {
			assert.Empty(t, test.FindAllString(code.ReplaceAllString(sources(t, page), ""), -1), page)
		}
	}
}
