package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	tableOpening = "<!-- table:"
	tableClosing = "<!-- /table -->"
)

var tablePattern = regexp.MustCompile(`(?s)<!-- table:([a-z0-9-]+) -->\n.*?<!-- /table -->`)

// A renderedTable is the new content of a table in a document, and the chart of the same run if there is one.
type renderedTable struct {
	body    string
	picture []byte
}

// updateDocuments replaces the tables of measurements in files. fill measures a table and returns its new content. It
// is called once for a table that occurs in several files. All files are checked before the first measurement, and a
// file is written when all of its tables are measured.
func updateDocuments(files []string, fill func(documentTable) (renderedTable, error)) error {
	texts := make([]string, len(files))
	for i, file := range files {
		var err error
		if texts[i], err = readDocument(file); err != nil {
			return fmt.Errorf("-readme %s: %w", file, err)
		}
	}
	filled := make(map[string]renderedTable)
	for i, file := range files {
		written := make(map[string][]byte) // contents by file
		for _, match := range tablePattern.FindAllStringSubmatch(texts[i], -1) {
			t := documentTables[slices.Index(documentTableNames(), match[1])]
			table, ok := filled[t.name]
			if !ok {
				var err error
				if table, err = fill(t); err != nil {
					return err
				}
				filled[t.name] = table
			}
			texts[i] = strings.Replace(texts[i], match[0], tableOpening+t.name+" -->\n"+table.body+tableClosing, 1)
			if table.picture != nil {
				written[filepath.Join(filepath.Dir(file), t.picture)] = table.picture
			}
		}
		written[file] = []byte(texts[i])
		for name, content := range written {
			if err := os.WriteFile(name, content, 0o644); err != nil {
				return fmt.Errorf("-readme: %w", err)
			}
		}
	}
	return nil
}

// readDocument returns the text of a Markdown file with tables, between comments, that this program measures. It
// returns an error if there is no table, if the name of a table is unknown, or if a comment is missing.
func readDocument(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := string(content)
	tables := tablePattern.FindAllStringSubmatch(text, -1)
	opened, closed := strings.Count(text, tableOpening), strings.Count(text, tableClosing)
	if n := len(tables); n == 0 || opened != n || closed != n {
		return "", fmt.Errorf("found %d %sNAME --> and %d %s; each table needs both, on lines of their own, and a file needs a table", opened, tableOpening, closed, tableClosing)
	}
	for _, match := range tables {
		if !slices.Contains(documentTableNames(), match[1]) {
			return "", fmt.Errorf("no table %q: must be %s", match[1], joinWithOr(documentTableNames()))
		}
	}
	return text, nil
}
