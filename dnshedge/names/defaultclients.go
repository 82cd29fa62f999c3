package names

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/gohedge/hedge/dnshedge"
)

// defaultClients provides the Client for lookups of a Names whose field Exchanger is nil. It is safe for concurrent use.
type defaultClients struct {
	hosts string // path of the hosts file

	mu      sync.Mutex         // guards the fields below
	clients []*dnshedge.Client // the last one is in use
}

// getClient returns the Client for lookups, and creates it if necessary. A Client without a hosts file is replaced by a
// Client with the hosts file when the file appears. The caller must not close the Client.
func (o *defaultClients) getClient() *dnshedge.Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.clients); n > 0 && (o.clients[n-1].Hosts != "" || !o.hasHostsFile()) {
		return o.clients[n-1]
	}
	c := new(dnshedge.Client)
	if o.hasHostsFile() {
		c.Hosts = o.hosts
	}
	o.clients = append(o.clients, c)
	return c
}

// hasHostsFile reports whether the hosts file exists. If that cannot be determined, it returns true: a Client that uses
// the file then reports the error.
func (o *defaultClients) hasHostsFile() bool {
	_, err := os.Stat(o.hosts)
	return !errors.Is(err, fs.ErrNotExist)
}

// closeClients closes all Clients that getClient has created. The caller must not call getClient after it.
func (o *defaultClients) closeClients() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.clients {
		_ = c.Close()
	}
}
