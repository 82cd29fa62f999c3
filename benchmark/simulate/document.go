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

// tablePattern matches a table. The text between its two comments is replaced.
var tablePattern = regexp.MustCompile(`(?s)<!-- table:([a-z0-9-]+) -->\n(.*?)<!-- /table -->`)

// A document is a file of the documentation that contains measured tables, see documentTable.
type document struct {
	file   string
	text   string
	tables [][]int // matches of tablePattern: begin and end of each table, of its name and of its body
}

// A renderedTable is the new content of a table in a document, as Markdown, and the picture of the same run if it has
// one.
type renderedTable struct {
	body    string
	picture []byte
}

// updateDocuments replaces the measured tables in files. fill measures a table and returns its new content. All files
// are checked before the first measurement, and a file is written when all of its tables are measured. A table in
// several files is measured once.
func updateDocuments(files []string, fill func(documentTable) (renderedTable, error)) error {
	var documents []document
	for _, file := range files {
		d, err := readDocument(file)
		if err != nil {
			return fmt.Errorf("-readme %s: %w", file, err)
		}
		documents = append(documents, d)
	}
	filled := make(map[string]renderedTable)
	for _, d := range documents {
		for _, name := range d.tableNames() {
			if _, ok := filled[name]; ok {
				continue
			}
			var err error
			if filled[name], err = fill(findDocumentTable(name)); err != nil {
				return err
			}
		}
		if err := d.writeFile(filled); err != nil {
			return fmt.Errorf("-readme: %w", err)
		}
	}
	return nil
}

// readDocument reads a file of the documentation and finds its tables. It returns an error if there is none, if a name
// is unknown, or if a comment around a table is missing.
func readDocument(file string) (document, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return document{}, err
	}
	d := document{file: file, text: string(text)}
	d.tables = tablePattern.FindAllStringSubmatchIndex(d.text, -1)
	opened, closed := strings.Count(d.text, tableOpening), strings.Count(d.text, tableClosing)
	if n := len(d.tables); n == 0 || opened != n || closed != n {
		return d, fmt.Errorf("found %d %sNAME --> and %d %s; each table needs both, on lines of their own, and a file needs a table", opened, tableOpening, closed, tableClosing)
	}
	for _, name := range d.tableNames() {
		if !slices.Contains(documentTableNames(), name) {
			return d, fmt.Errorf("no table %q: must be %s", name, joinNames(documentTableNames()))
		}
	}
	return d, nil
}

// tableNames returns the names of the tables in the document, in their order.
func (d document) tableNames() (names []string) {
	for _, at := range d.tables {
		names = append(names, d.text[at[2]:at[3]])
	}
	return names
}

// writeFile writes the document with the new contents of its tables, which filled has by name. It also writes the
// pictures of these tables.
func (d document) writeFile(filled map[string]renderedTable) error {
	var text strings.Builder
	end := 0
	for i, name := range d.tableNames() {
		at, table := d.tables[i], filled[name]
		text.WriteString(d.text[end:at[4]] + table.body)
		end = at[5]
		if table.picture != nil {
			file := filepath.Join(filepath.Dir(d.file), findDocumentTable(name).picture)
			if err := os.WriteFile(file, table.picture, 0o644); err != nil {
				return err
			}
		}
	}
	text.WriteString(d.text[end:])
	return os.WriteFile(d.file, []byte(text.String()), 0o644)
}
