package recursor

// Whoever answers a question chooses how large an answer is, and how long the next server takes. So what a question
// holds while it waits is small, or is counted.

// uncountedBytes is how many bytes of memory a question may hold at a time, of one kind, without being counted.
const uncountedBytes = 4 << 10

// hold reports whether a question may hold so many bytes while it waits. They must be let go.
func (c *core) reserveMemory(bytes int64) bool {
	if bytes <= uncountedBytes {
		return true
	}
	if c.heldBytes.Add(bytes) <= c.maxHeldBytes {
		return true
	}
	c.heldBytes.Add(-bytes)
	return false
}

// releaseMemory gives back what was held.
func (c *core) releaseMemory(bytes int64) {
	if bytes > uncountedBytes {
		c.heldBytes.Add(-bytes)
	}
}
