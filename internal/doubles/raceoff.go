//go:build !race

package doubles

// RaceEnabled is true if the race detector is on, which makes programs several times slower.
const RaceEnabled = false
