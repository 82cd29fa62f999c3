package sketch

import "time"

const (
	Accuracy      = accuracy
	MinHalfAge    = minHalfAge
	MinHalfSize   = minHalfSize
	MaxPastWeight = maxPreviousWeight
)

var (
	LowerBound = lowerBound
	Mapping    = indexMapping
)

// Edge returns the last nanosecond of bucket i.
func Edge(i int) time.Duration { return upperBounds[i-lowestIndex] }
