package lab

import (
	"os"
	"slices"
	"sync"

	"github.com/gohedge/hedge/internal/netsim"
)

// A Testbed owns the resources of a run: a simulated network, a directory for files, and others that functions registered
// by AtClose release.
type Testbed struct {
	Net *netsim.Network // nil if the testbed has no hosts
	Dir string

	mu      sync.Mutex // guards closers
	closers []func()
}

// NewTestbed returns a testbed with a network of the given hosts: in memory if the config says so, and otherwise with
// kernel sockets, which need root on Linux, see netsim.ErrUnsupported. The caller must close it.
func NewTestbed(c Config, hosts ...string) (*Testbed, error) {
	newNetwork := netsim.NewKernel
	if c.Memory {
		newNetwork = netsim.NewMemory
	}
	dir, err := os.MkdirTemp("", "lab")
	if err != nil {
		return nil, err
	}
	t := &Testbed{Dir: dir}
	t.AtClose(func() { _ = os.RemoveAll(dir) })
	err = os.Chmod(dir, 0o755) // some programs drop their privileges
	if len(hosts) > 0 && err == nil {
		if t.Net, err = newNetwork(c.Seed, hosts...); err == nil {
			t.AtClose(func() { _ = t.Net.Close() })
		}
	}
	if err != nil {
		t.Close()
	}
	return t, err
}

// AtClose registers a function that Close calls to release a resource. It is safe for concurrent use.
func (t *Testbed) AtClose(release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closers = append(t.closers, release)
}

// Close calls the functions that AtClose has registered, the last one first.
func (t *Testbed) Close() {
	for _, release := range slices.Backward(t.closers) {
		release()
	}
}
