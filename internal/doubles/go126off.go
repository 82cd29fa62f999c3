//go:build !go1.26

package doubles

const Go126 = false
