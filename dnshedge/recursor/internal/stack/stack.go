// Package stack gives goroutines the room that they are going to need.
//
// A goroutine begins with 2 KiB of stack. When a call does not fit, the stack is doubled, and every frame on it is walked and copied.
// What resolves a name comes to 8 or 16 KiB each time, through ever more frames: 8 % of the processor time of a cold name. Whoever
// grows the stack at once, while there are few frames, pays next to nothing.
package stack

// The frames take what is left of a stack beside a few others, with what Go keeps free at its end.
const (
	below8  = 5 << 10
	below16 = 9 << 10
)

// Grow8 grows the stack of the goroutine that calls it to 8 KiB at least.
func Grow8() { use8(0) }

// Grow16 grows it to 16 KiB at least.
func Grow16() { use16(0) }

//go:noinline
func use8(i int) byte {
	var frame [below8]byte
	return frame[i]
}

//go:noinline
func use16(i int) byte {
	var frame [below16]byte
	return frame[i]
}
