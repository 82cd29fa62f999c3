package recursor

// uncountedBytes is the largest memory that a waiting question holds for one purpose without counting it in
// core.heldBytes. Servers choose the size of their answers, and how long the question waits for the next one.
const uncountedBytes = 4 << 10

// reserveMemory counts memory that a waiting question holds, in bytes, and reports whether the limit allows it. If
// it does, the caller must call releaseMemory.
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

// releaseMemory ends the effect of reserveMemory with the same argument.
func (c *core) releaseMemory(bytes int64) {
	if bytes > uncountedBytes {
		c.heldBytes.Add(-bytes)
	}
}
