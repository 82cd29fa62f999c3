package upload

// UsedBytes returns how many bytes of memory are taken.
func (m *MemoryPool) UsedBytes() int64 { return m.used.Load() }
