//go:build !race

package dnshedge_test

// raceEnabled says that the race detector makes everything slower.
const raceEnabled = false
