package upload

// UsedBytes returns the number of reserved bytes.
func (m *MemoryPool) UsedBytes() int64 { return m.used.Load() }
