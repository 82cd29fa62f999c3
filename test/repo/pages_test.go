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

// TestSentencesOfPagesAreShort limits the share of sentences with more than 25 words in each page. Code, tables and headings do not count.
func TestSentencesOfPagesAreShort(t *testing.T) {
	for _, page := range documents(t) {
		var all, long []string
		for _, s := range sentences(sources(t, page)) {
			all = append(all, s)
			if len(regexp.MustCompile(`\S*\w\S*`).FindAllString(s, -1)) > 25 {
				long = append(long, s)
			}
		}
		assert.LessOrEqual(t, 20*len(long), len(all), "%s: of %d sentences, more than 5 %% are longer than 25 words:\n%s", page, len(all), strings.Join(long, "\n"))
	}
}

// sentences returns the sentences of a page. A point of a list ends a sentence, and a link counts as its text.
func sentences(page string) (all []string) {
	for _, dropped := range []string{"(?s)```.*?```", `(?s)<!-- table:.*?<!-- /table -->`, `(?m)^([|#<]|    |\t).*$`, "(?m)^`(go|make) [^`]*`; .*$"} {
		page = regexp.MustCompile(dropped).ReplaceAllString(page, "\n")
	}
	page = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(page, "$1")
	end := regexp.MustCompile(`[.!?][")*]*\s+|\n\s*\n|\n\s*([*-]|\d+\.) `)
	for _, s := range end.Split(page, -1) {
		if s = strings.Join(strings.Fields(s), " "); s != "" {
			all = append(all, s)
		}
	}
	return all
}
