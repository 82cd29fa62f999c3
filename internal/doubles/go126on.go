//go:build go1.26

package doubles

// Go126 reports whether Go is 1.26 or newer.
const Go126 = true
