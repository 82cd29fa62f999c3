//go:build race

package main

// raceOn says that the race detector is on. It makes simulations ten times
// slower and has nothing to find in one that runs in one goroutine: the long
// ones are left out, the short ones keep it busy.
const raceOn = true
