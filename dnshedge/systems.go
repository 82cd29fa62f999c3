package dnshedge

import (
	"cmp"

	"github.com/gohedge/hedge/dnshedge/internal/system"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

// An unwrapper is an Exchanger that asks another one, such as a dnssec.Validator.
type unwrapper interface{ Unwrap() any }

// maxUnwrapped bounds a chain of unwrappers, which may be a circle.
const maxUnwrapped = 32

// systemFinder collects the system's servers that Exchangers ask, themselves or through other Exchangers.
type systemFinder struct {
	found   []*system.Servers
	visited map[*Client]bool // Clients may refer to each other
}

// visit adds the system's servers that e, which may be nil, asks.
func (f *systemFinder) visit(e any) {
	for range maxUnwrapped {
		u, ok := e.(unwrapper)
		if !ok {
			break
		}
		e = nil // if Unwrap panics
		usercode.Run(func() { e = u.Unwrap() })
	}
	c, ok := e.(*Client)
	if !ok || c == nil || f.visited[c] {
		return
	}
	f.visited[c] = true
	if core, err := c.setup(); err == nil {
		f.visitServers(core.servers)
	}
}

// visitServers adds the system's servers that a Client with these servers asks.
func (f *systemFinder) visitServers(s *servers) {
	if s.system != nil {
		f.found = append(f.found, s.system)
	}
	f.visit(s.exchanger)
	for _, e := range s.routes.exchangers {
		f.visit(e)
	}
}

// findSystems returns the system's servers that the Client asks, itself or through Exchangers. It is called when the Client is first used
// with a Cache, and not by setup: Clients that refer to each other would wait for each other.
func (c *core) findSystems() []*system.Servers {
	f := systemFinder{visited: map[*Client]bool{c.conf: true}}
	f.visitServers(c.servers)
	return f.found
}

// asksSystem reports whether the system's servers may have a part in answers to questions with that route, which may be nil.
func (c *core) asksSystem(route Exchanger) bool {
	e := cmp.Or(route, c.servers.exchanger)
	if e == nil || len(c.systems()) == 0 {
		return c.servers.system != nil
	}
	f := systemFinder{visited: make(map[*Client]bool)}
	f.visit(e)
	return len(f.found) > 0
}
