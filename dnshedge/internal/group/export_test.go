package group

// HealthIsFree reports whether nobody holds the lock of a server's health.
func HealthIsFree(s *Server) bool {
	free := s.health.mu.TryLock()
	if free {
		s.health.mu.Unlock()
	}
	return free
}

// Silence makes a server silent.
func Silence(s *Server) { s.health.silent.Store(true) }
