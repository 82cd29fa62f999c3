//go:build !race

package hedgetest

// RaceEnabled reports whether the race detector is on, which makes everything several
// times slower.
const RaceEnabled = false
