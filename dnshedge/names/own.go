package names

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/gohedge/hedge/dnshedge"
)

// defaultClients is the Client that a Names without an Exchanger asks. It is safe for concurrent use.
type defaultClients struct {
	hosts string // path of the hosts file

	mu      sync.Mutex // guards the fields below
	clients []*dnshedge.Client
}

// getClient returns the Client. While there is no hosts file, each call looks for the file. When there is one, another Client,
// which reads it, replaces the first. A file that exists and cannot be read fails the lookup, as for any Client.
func (o *defaultClients) getClient() *dnshedge.Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.clients); n > 0 && (o.clients[n-1].Hosts != "" || !o.hasHosts()) {
		return o.clients[n-1]
	}
	c := new(dnshedge.Client)
	if o.hasHosts() {
		c.Hosts = o.hosts
	}
	o.clients = append(o.clients, c)
	return c
}

// hasHosts reports whether there is a hosts file, as far as can be known.
func (o *defaultClients) hasHosts() bool {
	_, err := os.Stat(o.hosts)
	return !errors.Is(err, fs.ErrNotExist)
}

// closeClients closes the Clients. get must not be called any more.
func (o *defaultClients) closeClients() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.clients {
		_ = c.Close()
	}
}
