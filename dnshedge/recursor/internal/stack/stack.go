// Package stack grows a goroutine's stack in advance.
//
// A goroutine begins with 2 KiB of stack. When a call does not fit, the runtime doubles the stack and copies every
// frame on it. Resolving a name needs 8 or 16 KiB. The copies would take 8 % of the processor time of a name that is
// not cached.
//
// Growing the stack at once, while there are few frames, costs almost nothing.
package stack

// Sizes of a frame that needs a stack of 8 or 16 KiB, together with a few other frames and the runtime's reserve.
const (
	frameFor8KiB  = 5 << 10
	frameFor16KiB = 9 << 10
)

// index is an index of a frame. It is a variable, so that the compiler does not remove the frame. It is always 0.
var index int

// GrowTo8KiB grows the stack of the calling goroutine to at least 8 KiB, so that later calls do not have to copy it. The
// runtime grows the stack because this function has a frame of frameFor8KiB bytes.
//
//go:noinline
func GrowTo8KiB() {
	var frame [frameFor8KiB]byte
	if frame[index] != 0 {
		panic("stack: frame is not zero")
	}
}

// GrowTo16KiB grows the stack of the calling goroutine to at least 16 KiB, so that later calls do not have to copy it.
// The runtime grows the stack because this function has a frame of frameFor16KiB bytes.
//
//go:noinline
func GrowTo16KiB() {
	var frame [frameFor16KiB]byte
	if frame[index] != 0 {
		panic("stack: frame is not zero")
	}
}
