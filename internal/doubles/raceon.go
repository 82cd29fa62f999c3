//go:build race

package doubles

// RaceEnabled reports whether the race detector is on, which makes everything several
// times slower.
const RaceEnabled = true
