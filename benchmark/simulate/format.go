package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

func (f engineResults) writeResults(w io.Writer, format string) error {
	if format == "text" {
		_, err := io.WriteString(w, f.formatText(terminalColumns))
		return err
	}
	rows := f.rows()
	if rows == nil {
		rows = []row{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(rows)
}

// formatText returns the results as plain text with the columns that the function columns returns.
func (f engineResults) formatText(columns func(engineSpec) []metric) string {
	if len(f.scenarios) == 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "%s: %s; %s\n%s\n", s.scenario.name, s.scenario.description, s.describeRequests(), newTextTable(s.tableRows(), columns(f.options.engine.spec())).formatAligned())
		if summary := s.compareWithPeers(nil); summary != "" {
			b.WriteString(summary + "\n")
		}
		b.WriteByte('\n')
	}
	width := 0
	for _, s := range collectStrategies(f) {
		width = max(width, len(s.name))
	}
	for _, s := range collectStrategies(f) {
		fmt.Fprintf(&b, "%-*s  %s\n", width, s.name, s.fullDescription())
	}
	b.WriteString("\n" + strings.Join(f.tableNotes(), "\n") + "\n")
	return b.String()
}

// MarshalJSON returns an object with all metrics in their order. A metric without a figure is null.
func (r row) MarshalJSON() ([]byte, error) {
	b := []byte("{")
	for i, m := range metrics {
		v, err := json.Marshal(m.field(&r))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:%s", m.name, v)
	}
	return append(b, '}'), nil
}
