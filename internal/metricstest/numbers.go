package metricstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A DocumentedNumber is a row of a table of numbers in the pages of docs.
type DocumentedNumber struct {
	Label  string // label on the debug page
	JSON   string // path in the JSON of the debug page, such as keys[].p99
	Metric string // metric in Prometheus, which may have a label, such as hedge_attempts_total{type="hedge"}; "none" or "-": there is none
}

// DocumentedNumbers returns the rows of the table whose first title is the argument title, such as "number of a Limiter". The
// table is in one of the pages in the directory docs. It has one of two forms:
//
//   - a Markdown table with the columns title, JSON, metric and page, in which title describes the number
//   - lines in a code block, with two or more spaces between the columns title, JSON and metric, in which title is the label
func DocumentedNumbers(t *testing.T, docs, title string) (numbers []DocumentedNumber) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	require.NoError(t, err)
	head := regexp.MustCompile(`(?m)^(?:\| )?` + regexp.QuoteMeta(title) + ` [ |]+JSON .*\n(?:\|---.*\n)?`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		found := head.FindIndex(text)
		if found == nil {
			continue
		}
		for row := range strings.Lines(string(text[found[1]:])) {
			row = strings.TrimSpace(row)
			if row == "" || row == "```" {
				break
			}
			numbers = append(numbers, parseNumber(t, row))
		}
	}
	require.NotEmpty(t, numbers, "no page in %s has a table that begins with %q", docs, title)
	return numbers
}

// columnSpace separates the columns of a table in a code block.
var columnSpace = regexp.MustCompile(` {2,}`)

// parseNumber returns the number in a row of a table, which has one of the two forms of DocumentedNumbers.
func parseNumber(t *testing.T, row string) DocumentedNumber {
	t.Helper()
	if !strings.HasPrefix(row, "|") {
		cells := columnSpace.Split(row, -1)
		require.Len(t, cells, 3, row)
		return DocumentedNumber{Label: cells[0], JSON: cells[1], Metric: cells[2]}
	}
	cells := strings.Split(strings.ReplaceAll(row, "`", ""), "|")
	require.GreaterOrEqual(t, len(cells), 6, row)
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return DocumentedNumber{Label: cells[4], JSON: cells[2], Metric: cells[3]}
}
