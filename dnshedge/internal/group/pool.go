// Package group sends a DNS question to a group of servers that can answer it equally well, with hedges.
//
// A question goes to the best server of the group. If the response is late, the question is sent a second time (a
// hedge). If a query is presumed lost, it is sent again (a retransmission). If a server cannot answer, the question
// goes to the next server at once (a failover).
//
// A [Pool] holds the servers of one Client. A [Server] is a DNS server with its learned state: its latencies, its
// health, and the budget for further queries. An [Exchange] sends one question to a group. The caller does the caching,
// names the servers, and chooses the order of groups.
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
	// MaxServers is the number of servers at which a Pool forgets a server before it adds another. The Pool holds more
	// servers only while it may forget none of them.
	MaxServers = 256

	// minIdleTime is the time for which the Pool keeps a server with UseForQuestions, at least, after the last request for
	// that server.
	minIdleTime = 30 * time.Second
)

// Config is the configuration that all servers of a Pool share.
type Config struct {
	Hedging   Hedging             // delays, number and budget of hedges
	Timeout   time.Duration       // limits the duration of an exchange with all its attempts
	IsOff     func() bool         // reports whether hedging is switched off; lost queries are retransmitted even then
	IsShadow  bool                // shadow mode: hedges are counted and not sent
	Engine    *policy.Engine      // holds a latency key for each server
	Counters  *Counters           // counts the events of all servers
	Observers *observers.Notifier // receives the events of exchanges; nil: no observers
	Log       *ops.Log            // receives changes of the servers' health
	Tracer    AttemptTracer       // receives the attempts of exchanges; nil: no tracing

	// Spawn calls f in a new goroutine and returns true. It returns false, and does not call f, if no further goroutine
	// may start. f must return when its context ends. The Pool calls Spawn without holding a lock of a Server.
	Spawn func(f func(context.Context)) bool
}

// An AttemptTracer receives the start and the end of each query. n is the number of the attempt, from 0. An attempt
// may send several queries, even at once. isHedge is false for attempt 0 and for retransmissions. Methods must be safe
// for concurrent use.
type AttemptTracer interface {
	// AttemptStarted is called before a query is sent to the server. ctx is the context of the attempt.
	AttemptStarted(ctx context.Context, q *wire.Query, server *Server, n int, isHedge bool)
	// AttemptEnded is called when a query has ended, with the duration of the query and its error. err is nil if the
	// server responded, even with a failure.
	AttemptEnded(ctx context.Context, q *wire.Query, server *Server, n int, isHedge bool, took time.Duration, err error)
}

// A Pool holds the servers of a Client by name. All servers share a Config and a hedge budget. A full Pool closes
// servers that have not been used for a while. It is safe for concurrent use.
type Pool struct {
	conf         Config         // never changes
	sharedBucket *budget.Bucket // a hedge to any server costs one of its tokens
	isClosed     atomic.Bool    // RemoveAllServers was called

	mu      sync.Mutex               // guards the fields below; a Server's locks are taken after it, never before
	servers map[string]*pooledServer // by name; nil after RemoveAllServers
}

// NewPool returns an empty Pool. conf must have all defaults filled in.
func NewPool(conf Config) *Pool {
	return &Pool{conf: conf, sharedBucket: budget.NewBucket(conf.Hedging.Share, Burst), servers: make(map[string]*pooledServer)}
}

// A Usage determines how long a Pool must keep a server after Pool.GetOrCreateServer has returned it.
type Usage int

const (
	UsePermanently  Usage = iota // the Pool never forgets the server
	UseForQuestions              // the Pool may forget the server max(minIdleTime, Config.Timeout) after its last request
	UseOnce                      // the Pool may forget the server as soon as the caller has called Release, which it must do
)

// A pooledServer is a server of a Pool, with the data by which the Pool decides whether to remove it. Pool.mu guards
// the data.
type pooledServer struct {
	*Server
	isPermanent      bool      // a caller has asked for UsePermanently, so the Pool never forgets the server
	temporaryCallers int       // number of callers with UseOnce that have not called Release yet
	isTemporary      bool      // every call of GetOrCreateServer for this server had UseOnce
	lastRequested    time.Time // time of the last call of GetOrCreateServer with another Usage than UseOnce; zero: none
}

// GetOrCreateServer returns the server with the given name. If the Pool has none, it creates one from the result of
// target. use is how long the Pool must keep it; after UseOnce, the caller must call Release. It returns target's
// error, or transport.ErrClosed after RemoveAllServers.
func (p *Pool) GetOrCreateServer(name string, use Usage, target func() (Target, error)) (*Server, error) {
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
		for len(p.servers) >= MaxServers && p.removeLeastRecentlyUsed() {
		}
		p.servers[name] = s
	}
	if use == UseOnce {
		s.temporaryCallers++
		return s.Server, nil
	}
	s.isTemporary, s.lastRequested = false, time.Now()
	s.isPermanent = s.isPermanent || use == UsePermanently
	return s.Server, nil
}

// Release ends the use of the server s by a caller of GetOrCreateServer with UseOnce. The Pool may then remove s,
// unless another use keeps it. Release must be called once for each call of GetOrCreateServer with UseOnce that
// returned s.
func (p *Pool) Release(s *Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pooled := p.servers[s.Name]; pooled != nil { // nil after RemoveAllServers
		pooled.temporaryCallers--
	}
}

// removeLeastRecentlyUsed removes from the Pool the server whose last query is the oldest, and closes it in the
// background. Servers that the Pool must keep, according to their Usage, are skipped. It returns false if no other
// server exists. The caller must hold mu.
func (p *Pool) removeLeastRecentlyUsed() bool {
	var oldest *pooledServer
	patience := max(minIdleTime, p.conf.Timeout)
	for _, s := range p.servers {
		if oldest != nil && s.lastAsked.Load() >= oldest.lastAsked.Load() {
			continue
		}
		if !s.isPermanent && s.temporaryCallers == 0 && (s.isTemporary || time.Since(s.lastRequested) >= patience) {
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

// AllServers returns all servers of the Pool, in random order.
func (p *Pool) AllServers() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listServers()
}

// RemoveAllServers removes all servers from the Pool and returns them. The caller must close them. Later calls of
// GetOrCreateServer return transport.ErrClosed.
func (p *Pool) RemoveAllServers() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.listServers()
	p.servers = nil
	p.isClosed.Store(true)
	return all
}

// IsClosed reports whether RemoveAllServers was called. Then queries fail because of their own Client, and not because
// of a server.
func (p *Pool) IsClosed() bool { return p.isClosed.Load() }

// listServers returns all servers of the Pool, in random order. The caller must hold mu.
func (p *Pool) listServers() []*Server {
	all := make([]*Server, 0, len(p.servers))
	for _, s := range p.servers {
		all = append(all, s.Server)
	}
	return all
}

// Counters count queries, hedges, retransmissions, failovers and other events since the start, over all servers of a
// Pool. They are safe for concurrent use.
type Counters struct {
	Queries   atomic.Int64 // queries sent, including hedges, retransmissions, failovers and probes
	Hedges    atomic.Int64 // hedges sent
	HedgeWins atomic.Int64 // questions whose first successful response came from a hedge
	Denied    atomic.Int64 // hedges that were due and were not sent

	Retransmissions    atomic.Int64 // retransmissions sent
	RetransmissionWins atomic.Int64 // questions whose first successful response came from a retransmission
	Failovers          atomic.Int64 // attempts that continued with another server, counted each time

	Retries   atomic.Int64 // queries repeated because their connection had been closed
	Ignored   atomic.Int64 // messages received that are no response to any waiting query
	Abandoned atomic.Int64 // queries that kept waiting for their response after their caller had gone
}

// budgetMargin is the factor by which hedges may exceed the budget when the slow delay is computed. It is more than 1,
// because some hundred samples cannot tell 5 % from 6 %. A delay that grew after each burst of losses would not hedge
// these losses.
//
// Nevertheless, hedges stay within the budget, which the token buckets enforce.
const budgetMargin = 1.5

// MaxHedges is the maximum number of attempts of a question besides the primary. Documented waiting times hold for four
// attempts in all, of which the last one sends a further query after each timeout.
const MaxHedges = 3

// Hedging is the hedging configuration of a Client, with all defaults filled in. It must not change while a Pool uses
// it.
type Hedging struct {
	FixedDelay    time.Duration // delay of a single hedge that needs no budget; 0: delays are learned
	Percentile    float64       // least share of responses that must be faster than the slow delay, between 0 and 1
	MaxHedges     int           // maximum number of hedges per question
	Share         float64       // hedges as a share of queries, between 0 and 1
	MaxPerSecond  float64       // maximum number of hedges per second; 0: no limit
	MinDelay      time.Duration // shortest hedge delay
	LocalMinDelay time.Duration // MinDelay for servers on this machine
	MaxDelay      time.Duration // longest slow delay
}

// PolicyConfig returns the configuration of the policy engine, which learns latencies and admits hedges. The engine has
// a latency key for each server.
func (h *Hedging) PolicyConfig() policy.Config {
	share := budgetMargin * h.Share // a server's bucket enforces the share itself
	return policy.Config{
		Percentile:   h.Percentile,
		MaxHedges:    1, // an exchange computes the delays itself
		Share:        share,
		EstimatedRPS: Burst / share,
		Burst:        time.Second,
		MinDelay:     h.LocalMinDelay,
		InitialDelay: initialDelay,
		MaxPerSecond: h.MaxPerSecond,
		MaxKeys:      4 * MaxServers,
	}
}

// The default minimums of hedge delays. A query never counts as unanswered before this time (see
// latencyEstimator.unansweredDelay).
const (
	DefaultMinDelay      = 10 * time.Millisecond
	DefaultLocalMinDelay = 2 * time.Millisecond // for servers on this machine
)

// initialDelay is the slow delay and the loss delay of a server before they are learned.
const initialDelay = 100 * time.Millisecond
