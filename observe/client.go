package observe

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// A ClientState is a function that returns the present states of a client's latency keys, in no particular order. Keys
// without calls are left out. The result exists is false if the client was garbage collected or closed: then there are
// no keys, and there never will be any.
//
// A ClientState does not keep its client alive. It is safe for concurrent use, but must not be called by methods of an
// [Observer] other than ClientCreated.
type ClientState func() (keys []KeyState, exists bool)

// A KeyState is the present state of one latency key: hedge delay, budget, audit and endpoints. Exporters show it as gauges.
type KeyState struct {
	KeyInfo
	Delay     time.Duration   // time from the start of the next call to its first hedge; 0: it will not be hedged
	Tokens    float64         // hedges that the budget suffices for now, with a precision of 0.001
	Share     float64         // hedges per call that the settings of the budget allow in the long run; 0: hedges are off, or are not paid from a budget
	Audit     Audit           // audit of the host, which all keys of the host share; the zero value: the host is not audited
	Endpoints []EndpointState // endpoints that the calls can use, see hedge.WithEndpoints; nil: calls had no choice yet
}

// An EndpointState says for an endpoint whether it is ejected, which means that calls go to other endpoints.
type EndpointState struct {
	Endpoint string // URL or target of the endpoint, as configured
	Ejected  int    // number of keys that have ejected the endpoint; 0 or 1 before Merge
}

// Merge adds the state of another key to k, for keys that share labels of metrics. KeyInfo does not change. Delay, Tokens
// and Share become the larger values, and Ejected becomes the sum.
//
// Audits of different hosts or clients cannot be added. The audit with an effect, on or off, is kept; otherwise the audit
// with another verdict than trying; otherwise the audit with more Pairs.
func (k *KeyState) Merge(other KeyState) {
	k.Delay, k.Tokens, k.Share = max(k.Delay, other.Delay), max(k.Tokens, other.Tokens), max(k.Share, other.Share)
	if cmp.Or(cmp.Compare(other.Audit.verdictRank(), k.Audit.verdictRank()), cmp.Compare(other.Audit.Pairs, k.Audit.Pairs)) > 0 {
		k.Audit = other.Audit
	}
	for _, e := range other.Endpoints {
		i := slices.IndexFunc(k.Endpoints, func(known EndpointState) bool { return known.Endpoint == e.Endpoint })
		if i < 0 {
			k.Endpoints = append(k.Endpoints, e)
		} else {
			k.Endpoints[i].Ejected += e.Ejected
		}
	}
}

// verdictRank orders audits for [KeyState.Merge]: a higher rank is kept. It is 0 if the host is not audited.
func (a Audit) verdictRank() int {
	switch a.Verdict {
	case "":
		return 0
	case AuditTrying:
		return 1
	case AuditOn, AuditOff:
		return 3
	}
	return 2
}

// Clients is a set of clients whose states an [Observer] reads, for example on each scrape of metrics. The zero value is an
// empty set. It is safe for concurrent use.
type Clients struct {
	mu     sync.Mutex // guards the fields below; not held while a ClientState is called
	states map[*ClientState]bool
	limit  int // size of states at which Add removes the clients that no longer exist
}

// Add adds a client. Call it with the argument of [Observer].ClientCreated.
func (c *Clients) Add(s ClientState) {
	c.mu.Lock()
	if c.states == nil {
		c.states, c.limit = make(map[*ClientState]bool), 64
	}
	c.states[&s] = true
	isFull := len(c.states) > c.limit
	c.mu.Unlock()
	if isFull { // the program creates many clients, and may never read their states
		c.KeyStates()
	}
}

// KeyStates returns the states of all latency keys of all clients that exist. It removes clients that were closed or
// garbage collected from the set.
func (c *Clients) KeyStates() (all []KeyState) {
	c.mu.Lock()
	states := slices.Collect(maps.Keys(c.states))
	c.mu.Unlock()
	var gone []*ClientState
	for _, s := range states {
		keys, exists := (*s)()
		if !exists {
			gone = append(gone, s)
		}
		all = append(all, keys...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range gone {
		delete(c.states, s)
	}
	c.limit = max(64, 2*len(c.states))
	return all
}
