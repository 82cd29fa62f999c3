package dnshedge

import "time"

// ProbeUnderLock has a silent server's probe fall due while somebody holds the
// Client's lock, and reports whether the server's lock stays free meanwhile.
func ProbeUnderLock(c *Client) bool {
	core, err := c.init()
	if err != nil {
		return false
	}
	s := core.group[0]
	s.mu.Lock()
	s.probeAt = time.Time{}
	s.mu.Unlock()
	s.silent.Store(true)
	core.mu.Lock()
	ended := make(chan bool)
	go func() {
		s.probeIfDue(time.Now())
		close(ended)
	}()
	free := false
	for end := time.Now().Add(2 * time.Second); !free && time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s.mu.TryLock() {
			free = s.probing // or probeIfDue has not come that far
			s.mu.Unlock()
		}
	}
	core.mu.Unlock()
	<-ended
	return free
}
