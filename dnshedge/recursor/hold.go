package recursor

// Whoever answers a question chooses how large an answer is, and how long the next server takes. So what a question
// holds while it waits is small, or is counted.

// smallHeld is how many bytes of memory a question may hold at a time, of one kind, without being counted.
const smallHeld = 4 << 10

// hold reports whether a question may hold so many bytes while it waits. They must be let go.
func (c *core) hold(bytes int64) bool {
	if bytes <= smallHeld {
		return true
	}
	if c.held.Add(bytes) <= c.maxHeld {
		return true
	}
	c.held.Add(-bytes)
	return false
}

// letGo gives back what was held.
func (c *core) letGo(bytes int64) {
	if bytes > smallHeld {
		c.held.Add(-bytes)
	}
}
