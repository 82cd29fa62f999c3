// Package group asks groups of equal servers, hedged: a question goes to the best of a group, a second time if the answer is
// late (a hedge), again if it is lost (a resend), and at once to the next server if one cannot answer (a failover).
//
// A [Pool] has the servers of one Client. A [Server] is a server and its state: its latencies, its
// health, and the budget for further queries. An [Exchange] is one question on its way through a group.
// Caches, names of upstreams and the order of groups are the caller's.
package group

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
)

const (
	// MaxServers is how many servers a Pool remembers, besides those that are being asked.
	MaxServers = 256

	minIdleTime = 30 * time.Second // a server that is wanted now and then may be forgotten if no question could go to it for so long
)

// Config is the configuration that all servers of a Pool share.
type Config struct {
	Hedging  Hedging
	Timeout  time.Duration // bounds an exchange with all its attempts
	IsOff    func() bool   // reports whether hedging is switched off; queries that are lost are still sent again
	IsShadow bool          // hedges are only counted
	Engine   *policy.Engine
	Counters *Counters
	Watcher  *observers.Notifier // nil: there are no observers
	Log      *ops.Log
	Tracer   AttemptTracer // nil: nobody is told

	// Spawn calls f in a goroutine that ends with the context it is given, or reports false if no more may begin. No lock of
	// a Server is held while it is called.
	Spawn func(f func(context.Context)) bool
}

// An AttemptTracer observes each attempt of a question, with its number and whether it is a hedge.
type AttemptTracer interface {
	AttemptStarted(ctx context.Context, q *wire.Query, to *Server, n int, hedge bool)
	AttemptEnded(ctx context.Context, q *wire.Query, to *Server, n int, hedge bool, took time.Duration, err error)
}

// A Pool has the servers of a Client, which it remembers by their names. It is safe for concurrent use.
type Pool struct {
	conf         Config         // never changes
	sharedBucket *budget.Bucket // pays for hedges to all servers

	mu      sync.Mutex               // guards the fields below; a Server's locks are taken after it, never before
	servers map[string]*pooledServer // by name; nil after Close
}

// NewPool returns a Pool without servers.
func NewPool(conf Config) *Pool {
	return &Pool{conf: conf, sharedBucket: budget.NewBucket(conf.Hedging.Share, Burst), servers: make(map[string]*pooledServer)}
}

// A Usage is the purpose of a server in a Pool.
type Usage int

// The uses.
const (
	UsePermanently  Usage = iota // it is never forgotten
	UseForQuestions              // questions come now and then that may be put to it
	UseOnce                      // it is asked by its address; the caller calls Release
)

// A pooledServer is a server and the reasons to remember it. The lock of the Pool guards it.
type pooledServer struct {
	*Server
	isPermanent bool      // it is never forgotten
	callers     int       // that ask it by its address now
	onlyOnce    bool      // it was asked by its address alone
	lastWanted  time.Time // when a question last came that may be sent to it, unless onlyOnce
}

// Server returns the server of that name, which target describes if it is new.
func (p *Pool) Server(name string, use Usage, target func() (Target, error)) (*Server, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers == nil {
		return nil, transport.ErrClosed
	}
	s := p.servers[name]
	if s == nil {
		t, err := target()
		if err != nil {
			return nil, err
		}
		s = &pooledServer{Server: newServer(p, name, t), onlyOnce: true}
		for len(p.servers) >= MaxServers && p.forgetOldest() {
		}
		p.servers[name] = s
	}
	if use == UseOnce {
		s.callers++
		return s.Server, nil
	}
	s.onlyOnce, s.lastWanted = false, time.Now()
	s.isPermanent = s.isPermanent || use == UsePermanently
	return s.Server, nil
}

// Release ends the use of a server that was asked by its address.
func (p *Pool) Release(s *Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pooled := p.servers[s.Name]; pooled != nil { // nil after Close
		pooled.callers--
	}
}

// forgetOldest closes the least recently used server. It skips servers that a caller waits for, permanent servers, and
// servers with a question within minIdleTime. It reports false if there is none. The caller holds mu.
func (p *Pool) forgetOldest() bool {
	var oldest *pooledServer
	patience := max(minIdleTime, p.conf.Timeout)
	for _, s := range p.servers {
		if oldest != nil && s.lastAsked.Load() >= oldest.lastAsked.Load() {
			continue
		}
		if !s.isPermanent && s.callers == 0 && (s.onlyOnce || time.Since(s.lastWanted) >= patience) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(p.servers, oldest.Name)
	p.conf.Spawn(func(context.Context) { oldest.Close() })
	return true
}

// FindServer returns the server of that name, or nil.
func (p *Pool) FindServer(name string) *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.servers[name]; s != nil {
		return s.Server
	}
	return nil
}

// AllServers returns the servers that are remembered, in no order.
func (p *Pool) AllServers() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listServers()
}

// Close forgets all servers and returns them. There are no new ones after it.
func (p *Pool) Close() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.listServers()
	p.servers = nil
	return all
}

// listServers returns the servers. The caller holds mu.
func (p *Pool) listServers() []*Server {
	all := make([]*Server, 0, len(p.servers))
	for _, s := range p.servers {
		all = append(all, s.Server)
	}
	return all
}

// Counters count the events of a Pool. They are safe for concurrent use.
type Counters struct {
	Queries   atomic.Int64 // queries that were sent
	Hedges    atomic.Int64
	HedgeWins atomic.Int64
	Denied    atomic.Int64 // hedges that were due and not sent

	Retransmissions    atomic.Int64
	RetransmissionWins atomic.Int64
	Failovers          atomic.Int64

	Retries   atomic.Int64 // queries that were sent again because their connection had been closed
	Ignored   atomic.Int64 // messages that were no query's response
	Abandoned atomic.Int64 // queries that ran on without a caller
}
