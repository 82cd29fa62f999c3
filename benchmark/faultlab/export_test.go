package faultlab

import "github.com/gohedge/hedge/benchmark/internal/latency"

// Answered returns the number of queries with a right answer.
func (r Row) Answered() int { return len(latency.SortedLatencies(r.Calls)) }
