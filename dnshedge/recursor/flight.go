package recursor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// maxFlight is how long the address of a server is looked up.
const maxFlight = 10 * time.Second

// errCycle is why the lookup of a server's name is not waited for: it waits for who asks.
var errCycle = errors.New("recursor: looking up a server's name needs itself")

// errGlued is why the lookup of a server's name ends before it has asked the name's own zone: glue
// for it has come on the way.
var errGlued = errors.New("recursor: there is glue for the server's name")

// errDeep is why a server's name is not looked up.
var errDeep = errors.New("recursor: too many names of servers are served by servers whose names have to be looked up")

// flights are the lookups of servers' names that are under way, and the steps, which all who need the same
// one share. None of them waits for itself, through others or not: who would close such a
// circle does not wait.
type flights struct {
	mu     sync.Mutex // guards the fields below, and nodes
	flying map[key]*flight
	steps  map[stepKey]*step
}

// node is a flight or a step in the graph of those that wait for others. It is guarded by flights.mu.
// A nil node is a caller's question, for which nobody waits.
type node struct {
	waits map[*node]int // for how many times this one waits
}

func (n *node) await(o *node) {
	if n == nil {
		return
	}
	if n.waits == nil {
		n.waits = make(map[*node]int)
	}
	n.waits[o]++
}

func (n *node) leave(o *node) {
	if n == nil {
		return
	}
	if n.waits[o]--; n.waits[o] <= 0 {
		delete(n.waits, o)
	}
}

// reaches reports whether n is o or waits for it, through others or not. Those in seen have
// been looked at.
func (n *node) reaches(o *node, seen map[*node]bool) bool {
	if n == o {
		return true
	}
	seen[n] = true
	for next := range n.waits {
		if !seen[next] && next.reaches(o, seen) {
			return true
		}
	}
	return false
}

// flight is one of them. It ends with the last who waits for it.
type flight struct {
	node
	key    key
	lookup *lookup // of the flight's own goroutine
	done   chan struct{}
	cancel context.CancelCauseFunc

	waiting int // for this one; guarded by flights.mu

	// Written before done is closed.
	rrs  []dns.RR // they must not be changed
	gone bool     // the name does not exist
	err  error
}

// gluedBy reports whether a zone that f is referred to has glue that makes f needless.
func (f *flight) gluedBy(z *delegation) bool {
	return slices.ContainsFunc(z.glueOf(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// find returns the records that answer q, which n, a step or a flight of l, needs to find servers, and whether the name is known not
// to exist. The records must not be changed.
func (c *core) find(ctx context.Context, l *lookup, n *node, q question) (rrs []dns.RR, gone bool, err error) {
	for try := 0; ; try++ {
		if rrs, gone, ok := c.cache.records(q, time.Now()); ok {
			return rrs, gone, nil
		}
		if l.bill.empty.Load() >= maxEmpty {
			return nil, false, nil
		}
		f, mine, err := c.join(l, n, q)
		if err != nil {
			return nil, false, err
		}
		select {
		case <-f.done:
			c.leave(n, f, nil)
		case <-ctx.Done():
			c.leave(n, f, context.Cause(ctx))
			return nil, false, context.Cause(ctx)
		}
		var limit *limitError
		if f.err == nil || mine || try == 2 || !errors.Is(f.err, errCycle) && !errors.As(f.err, &limit) && !errors.Is(f.err, errDeep) {
			return f.rrs, f.gone, f.err
		}
		// It failed because of who else asked for it; for this one it may do better.
	}
}

// join returns the flight for q, with n, which is l's, waiting for it. It is l's own if nobody else has
// asked for it before.
func (c *core) join(l *lookup, n *node, q question) (f *flight, mine bool, err error) {
	k := key{name: q.name, qtype: q.qtype}
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f = fs.flying[k]
	if f == nil {
		if l.depth >= maxDepth {
			return nil, false, errDeep
		}
		if err := charge(&l.bill.names, "ServerNames", l.bill.limits.ServerNames); err != nil {
			return nil, false, err
		}
		f, mine = c.start(l, k), true
	} else if n != nil && f.reaches(n, make(map[*node]bool)) {
		return nil, false, errCycle
	}
	f.waiting++
	n.await(&f.node)
	return f, mine, nil
}

// start begins a flight. The caller holds the lock.
func (c *core) start(l *lookup, k key) *flight {
	ctx, cancel := context.WithCancelCause(c.ctx)
	f := &flight{key: k, done: make(chan struct{}), cancel: cancel}
	f.lookup = &lookup{core: c, bill: l.bill, flight: f, depth: l.depth + 1}
	if c.flights.flying == nil {
		c.flights.flying = make(map[key]*flight)
	}
	c.flights.flying[k] = f
	c.count.lookups.Add(1)
	c.running.Go(func() {
		ctx, stop := context.WithTimeout(ctx, maxFlight)
		defer stop()
		defer cancel(nil)
		q := question{name: k.name, qtype: k.qtype}
		r, err := f.lookup.run(ctx, q)
		if err == nil {
			f.rrs, f.gone = r.answer, r.rcode == dns.RcodeNameError
		}
		f.err = err
		if errors.Is(err, fleet.ErrNoServers) {
			c.cache.addFailure(q, time.Now())
		}
		c.flights.mu.Lock()
		if c.flights.flying[k] == f {
			delete(c.flights.flying, k)
		}
		c.flights.mu.Unlock()
		close(f.done)
	})
	return f
}

// leave ends n's waiting for f. If nobody else waits, f ends, for the reason given.
func (c *core) leave(n *node, f *flight, why error) {
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n.leave(&f.node)
	if f.waiting--; f.waiting == 0 && why != nil {
		if fs.flying[f.key] == f {
			delete(fs.flying, f.key)
		}
		f.cancel(why)
	}
}

// addressesOf returns the addresses in an answer.
func addressesOf(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := address(rr); ok && len(addrs) < fleet.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
