// Package stack gives goroutines the room that they are going to need.
//
// A goroutine begins with 2 KiB of stack. When a call does not fit, the stack is doubled, and every frame on it is walked and copied.
// What resolves a name comes to 8 or 16 KiB each time, through ever more frames: 8 % of the processor time of a cold name. Whoever
// grows the stack at once, while there are few frames, pays next to nothing.
package stack

// The frames take what is left of a stack beside a few others, with what Go keeps free at its end.
const (
	frameFor8KiB  = 5 << 10
	frameFor16KiB = 9 << 10
)

// GrowTo8KiB grows the stack of the goroutine that calls it to 8 KiB at least.
func GrowTo8KiB() { touchFrame8(0) }

// GrowTo16KiB grows it to 16 KiB at least.
func GrowTo16KiB() { touchFrame16(0) }

//go:noinline
func touchFrame8(i int) byte {
	var frame [frameFor8KiB]byte
	return frame[i]
}

//go:noinline
func touchFrame16(i int) byte {
	var frame [frameFor16KiB]byte
	return frame[i]
}
