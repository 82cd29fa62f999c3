package names

// Kept returns how many hosts are kept.
func (n *Names) Kept() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.hosts)
}

// Leaving returns how many hosts have connections that are to be drained.
func (n *Names) Leaving() int { return int(n.drainingHosts.Load()) }

// Held returns how many connections, dials and watchers hold hosts.
func (n *Names) Held() (holds int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosts {
		holds += h.users
	}
	return holds
}

// Given returns how many addresses of LookupNetIP are remembered.
func (n *Names) Given() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.returned.hosts)
}

// Shared returns the number of returned addresses with more than one host.
func (n *Names) Shared() int { return int(n.returned.shared.Load()) }

// SetTurn sets the rotation of a host's addresses.
func (n *Names) SetTurn(host string, turn uint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host].rotation = turn
}

// ReadHosts makes n, which is new and has no Exchanger, read another hosts file than /etc/hosts.
func (n *Names) ReadHosts(path string) {
	n.init()
	n.own.hosts = path
}
