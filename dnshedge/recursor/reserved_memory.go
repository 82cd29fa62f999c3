package recursor

// uncountedBytes is the maximum memory, in bytes, that a waiting question may hold for one purpose without counting it
// in core.heldBytes. A limit is needed because servers choose the size of their answers, and how long the question
// waits.
const uncountedBytes = 4 << 10

// reserveMemory counts memory, in bytes, that a question holds while it waits for servers. It returns false if this
// would exceed core.maxHeldBytes. If it returns true, the caller must call releaseMemory with the same number.
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

// releaseMemory releases memory that reserveMemory has counted, in bytes.
func (c *core) releaseMemory(bytes int64) {
	if bytes > uncountedBytes {
		c.heldBytes.Add(-bytes)
	}
}
