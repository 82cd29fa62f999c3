package recursor

// Whoever answers a question chooses how large an answer is, and how long the next server takes. So what a question
// holds while it waits is small, or is counted.

// uncountedBytes is the memory of one kind that a question may hold without accounting. More is counted, because servers
// choose the size of answers and the time until the next one comes.
const uncountedBytes = 4 << 10

// reserveMemory reports whether a waiting question may hold so many bytes. Then releaseMemory must follow.
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

func (c *core) releaseMemory(bytes int64) {
	if bytes > uncountedBytes {
		c.heldBytes.Add(-bytes)
	}
}
