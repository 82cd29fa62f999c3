// Package stack grows a goroutine's stack in advance.
//
// A goroutine begins with 2 KiB of stack. When a call does not fit, the runtime doubles the stack and copies every frame on
// it. Resolving a name needs 8 or 16 KiB. The copies would take 8 % of the processor time of a name that is not cached.
// Growing the stack at once, while there are few frames, costs almost nothing.
package stack

// Sizes of a frame that needs a stack of 8 or 16 KiB, together with a few other frames and the runtime's reserve.
const (
	frameFor8KiB  = 5 << 10
	frameFor16KiB = 9 << 10
)

// GrowTo8KiB grows the stack of the calling goroutine to at least 8 KiB, so that later calls do not have to copy it.
func GrowTo8KiB() { touchFrame8(0) }

// GrowTo16KiB grows the stack of the calling goroutine to at least 16 KiB, so that later calls do not have to copy it.
func GrowTo16KiB() { touchFrame16(0) }

// touchFrame8 makes the runtime grow the stack, because its frame has frameFor8KiB bytes. It reads the frame at the
// variable index i, so that the compiler does not remove the array.
//
//go:noinline
func touchFrame8(i int) byte {
	var frame [frameFor8KiB]byte
	return frame[i]
}

// touchFrame16 makes the runtime grow the stack, because its frame has frameFor16KiB bytes. It reads the frame at the
// variable index i, so that the compiler does not remove the array.
//
//go:noinline
func touchFrame16(i int) byte {
	var frame [frameFor16KiB]byte
	return frame[i]
}
