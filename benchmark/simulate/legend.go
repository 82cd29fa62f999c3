package main

import "slices"

// A legendEntry explains a strategy below the tables of results, in one line.
type legendEntry struct{ Name, About string }

// newLegend returns an entry for each strategy in the results, in the order of the tables, with this library first.
func newLegend(all []engineResults) (entries []legendEntry) {
	ran := make(map[string]bool)
	for _, f := range all {
		for _, r := range f.rows() {
			ran[r.Strategy] = true
		}
	}
	for _, s := range strategies {
		entry := legendEntry{s.name, s.fullDescription()}
		switch {
		case !ran[s.name]:
		case s.name == ours:
			entries = slices.Insert(entries, 0, entry)
		default:
			entries = append(entries, entry)
		}
	}
	return entries
}
