package names

// Kept returns how many hosts are kept.
func (n *Names) Kept() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.hosts)
}

// Leaving returns how many hosts have connections that are to be drained.
func (n *Names) Leaving() int { return int(n.leaving.Load()) }
