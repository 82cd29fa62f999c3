//go:build go1.26

package doubles

// Go126 is true if the program is built with Go 1.26 or newer.
const Go126 = true
