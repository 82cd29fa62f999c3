package sketch

const (
	Accuracy      = accuracy
	MinHalfAge    = minHalfAge
	MinHalfSize   = minHalfSize
	MaxPastWeight = maxPastWeight
)
