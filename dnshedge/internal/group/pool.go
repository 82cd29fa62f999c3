// Package group sends a DNS question to a group of servers that can answer it equally well, with hedges.
//
// A question goes to the best server of the group. It is sent a second time when the answer is late (a hedge), and
// again when the query is presumed lost (a retransmission). It goes to the next server at once when a server cannot
// answer (a failover).
//
// A [Pool] holds the servers of one Client. A [Server] is a DNS server with its learned state: its latencies, its
// health, and the budget for further queries. An [Exchange] sends one question to a group. Caching, the names of
// upstreams and the order of groups are up to the caller.
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
	// MaxServers is the number of servers that a Pool remembers. Servers that are in use by a caller of UseOnce may exceed
	// it.
	MaxServers = 256

	// minIdleTime is the shortest time without questions for a server after which the Pool may forget it
	// (UseForQuestions).
	minIdleTime = 30 * time.Second
)

// Config is the configuration that all servers of a Pool share.
type Config struct {
	Hedging   Hedging
	Timeout   time.Duration // bounds an exchange with all its attempts
	IsOff     func() bool   // reports whether hedging is switched off; lost queries are retransmitted nevertheless
	IsShadow  bool          // shadow mode: hedges are counted and not sent
	Engine    *policy.Engine
	Counters  *Counters
	Observers *observers.Notifier // nil: no observers
	Log       *ops.Log
	Tracer    AttemptTracer // nil: no tracing

	// Spawn calls f in a new goroutine. It reports false, without a call, if no further goroutine may start. f must return
	// when its context ends. No lock of a Server is held during the call.
	Spawn func(f func(context.Context)) bool
}

// An AttemptTracer is called at the start and at the end of each attempt of a question. n is the attempt's number: 0 is
// the primary. hedge reports whether the attempt is a hedge.
type AttemptTracer interface {
	AttemptStarted(ctx context.Context, q *wire.Query, to *Server, n int, hedge bool)
	AttemptEnded(ctx context.Context, q *wire.Query, to *Server, n int, hedge bool, took time.Duration, err error)
}

// A Pool holds the servers of a Client by their names, and forgets servers that are no longer used. It is safe for
// concurrent use.
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

// A Usage tells the Pool how long to remember a server.
type Usage int

const (
	UsePermanently  Usage = iota // the Pool never forgets the server
	UseForQuestions              // the Pool may forget the server after minIdleTime without a question that it could be asked
	UseOnce                      // the Pool may forget the server as soon as the caller has called Release
)

// A pooledServer is a server with the data by which the Pool decides how long to remember it. The lock of the Pool
// guards it.
type pooledServer struct {
	*Server
	isPermanent bool      // UsePermanently: never forgotten
	callers     int       // number of UseOnce callers that have not called Release
	isTemporary bool      // all calls of Pool.Server for it had UseOnce
	lastWanted  time.Time // time of the last call of Pool.Server without UseOnce; zero if isTemporary
}

// Server returns the server with the given name. If the Pool has none, it adds a server for the result of target. A
// full Pool then forgets its least recently used server. The error is that of target, or transport.ErrClosed after
// Close.
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
		s = &pooledServer{Server: newServer(p, name, t), isTemporary: true}
		for len(p.servers) >= MaxServers && p.forgetOldest() {
		}
		p.servers[name] = s
	}
	if use == UseOnce {
		s.callers++
		return s.Server, nil
	}
	s.isTemporary, s.lastWanted = false, time.Now()
	s.isPermanent = s.isPermanent || use == UsePermanently
	return s.Server, nil
}

// Release ends the use of a server that Pool.Server returned for UseOnce.
func (p *Pool) Release(s *Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pooled := p.servers[s.Name]; pooled != nil { // nil after Close
		pooled.callers--
	}
}

// forgetOldest closes and forgets the server whose last query is oldest. It skips permanent servers, servers with
// UseOnce callers, and servers that were wanted for a question within minIdleTime or the configured timeout. It reports
// false if no server is left. The caller holds mu.
func (p *Pool) forgetOldest() bool {
	var oldest *pooledServer
	patience := max(minIdleTime, p.conf.Timeout)
	for _, s := range p.servers {
		if oldest != nil && s.lastAsked.Load() >= oldest.lastAsked.Load() {
			continue
		}
		if !s.isPermanent && s.callers == 0 && (s.isTemporary || time.Since(s.lastWanted) >= patience) {
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

// FindServer returns the server with the given name, or nil if the Pool has none.
func (p *Pool) FindServer(name string) *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.servers[name]; s != nil {
		return s.Server
	}
	return nil
}

// AllServers returns the servers of the Pool in random order.
func (p *Pool) AllServers() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listServers()
}

// Close removes all servers from the Pool and returns them without closing them. Later calls of Pool.Server fail.
func (p *Pool) Close() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.listServers()
	p.servers = nil
	return all
}

// listServers returns the servers of the Pool in random order. The caller holds mu.
func (p *Pool) listServers() []*Server {
	all := make([]*Server, 0, len(p.servers))
	for _, s := range p.servers {
		all = append(all, s.Server)
	}
	return all
}

// Counters count the events of all servers of a Pool. They are safe for concurrent use.
type Counters struct {
	Queries   atomic.Int64 // queries sent
	Hedges    atomic.Int64
	HedgeWins atomic.Int64
	Denied    atomic.Int64 // hedges that were due and not sent

	Retransmissions    atomic.Int64
	RetransmissionWins atomic.Int64
	Failovers          atomic.Int64

	Retries   atomic.Int64 // queries repeated because their connection had been closed
	Ignored   atomic.Int64 // received messages that answered no query
	Abandoned atomic.Int64 // queries that kept waiting for their answer after their caller had left
}
