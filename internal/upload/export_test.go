package upload

// Used returns how many bytes of memory are taken.
func (m *Memory) Used() int64 { return m.used.Load() }
