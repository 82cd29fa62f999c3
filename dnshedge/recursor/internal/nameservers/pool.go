// Package nameservers sends queries to the name servers of DNS zones. It selects the server, decides when to ask the next
// one, and hedges late answers. It is the infrastructure cache of the recursor: it learns round trip times, silent
// servers, and lame servers.
package nameservers

import (
	"cmp"
	"context"
	"hash/maphash"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/observe"
)

const (
	outageQueries = 32 // number of recent queries that determine an outage

	outageInterval = time.Second // minimum time between two timeouts of the same zone that count for an outage

	serverBytes = 160 // estimated memory of a server with its table entry, in bytes
	lameBytes   = 640 // estimated memory of a lameness or a zoneState with its name, in bytes

	healthBytes = 160 // estimated memory of a zoneServerHealth with its table entry, in bytes
)

// A Pool sends queries to name servers, and stores their round trip times and health. All Tasks of a Resolver share it.
// It is safe for concurrent use.
type Pool struct {
	// Set by NewPool.
	conf         *Config
	maxPerServer int32
	maxPerZone   int32
	epoch        time.Time
	ctx          context.Context    // context of all queries
	cancel       context.CancelFunc // cancels ctx

	// Safe for concurrent use.
	hedgeBudget *hedgeBudget
	counters    queryCounters
	wg          sync.WaitGroup // goroutines of queries and searches

	mu              sync.Mutex // guards the following fields, and the values that they point to
	closed          bool       // set by Close
	servers         serverTable
	healthByZone    healthTable
	lame            lameTable
	zones           zoneTable
	families        [2]familyHealth // IPv4 and IPv6
	sockets         socketLimiter
	firstRTTs       *firstRTTEstimator
	unansweredShare float64 // moving average of the share of unanswered queries, between 0 and 1
}

// queryCounters counts events of queries, for the statistics in observe.RecursorStats.
type queryCounters struct {
	wire, tcp, hedges, hedgeWins, timeouts, failovers, lame, ignored atomic.Int64
}

// NewPool returns a Pool with the configuration conf that has not queried any server. The caller must call Close when
// the Pool is no longer used.
func NewPool(conf Config) *Pool {
	p := &Pool{conf: &conf, epoch: time.Now(), hedgeBudget: newHedgeBudget(conf.Hedge), firstRTTs: newFirstRTTEstimator(cmp.Or(conf.Hedge.Percentile, 0.65))}
	if d, ok := conf.Dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		p.conf.Dialer = nil // a plain Dialer is not needed to open sockets
	}
	p.maxPerServer = int32(min(cmp.Or(conf.MaxPerServer, 64), math.MaxInt32))
	p.maxPerZone = int32(min(cmp.Or(conf.MaxPerZone, 256), math.MaxInt32))
	bytes := cmp.Or(conf.MaxBytes, 16<<20)
	names := int(min(bytes/16/lameBytes, math.MaxInt32)) // of lame records and of zones
	p.servers = serverTable{int(min(bytes*3/4/serverBytes, math.MaxInt32)), make(map[netip.AddrPort]*server)}
	p.healthByZone = healthTable{maphash.MakeSeed(), int(min(bytes/8/healthBytes, math.MaxInt32)), make(map[healthKey]*zoneServerHealth)}
	p.lame = lameTable{names, make(map[lameKey]lameness)}
	p.zones = zoneTable{names, make(map[string]*zoneState)}
	p.sockets.open = make(map[*query]struct{})
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close stops all queries and all lookups of server addresses, and waits for their goroutines. Later QueryServers calls
// return net.ErrClosed.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.cancel()
	for q := range p.sockets.open {
		q.stopExchange()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// addGoroutine registers a goroutine that the caller is about to start, so that Close waits for it. If the result is
// true, the goroutine must call wg.Done at its end. After Close, the result is false, and no goroutine may start. The
// caller must hold mu.
func (p *Pool) addGoroutine() bool {
	if !p.closed {
		p.wg.Add(1)
	}
	return !p.closed
}

// elapsed returns the time since Pool.epoch, which is the creation of the Pool.
func (p *Pool) elapsed() time.Duration { return time.Since(p.epoch) }

// CheckHedgeBudget returns true if the hedge budget has a token, with which a hedge can be paid. It does not spend the
// token. It returns false if hedging is disabled or suspended. If only the token is missing, it counts a denied hedge.
func (p *Pool) CheckHedgeBudget() bool { return p.hedgeBudget.checkToken() }

// countForOutageDetection counts a query as answered or unanswered, for the detection of an outage. While more than half of the
// recent queries are unanswered, hedges are suspended, because they would only add load. The caller must hold mu.
//
// The caller must count at most one unanswered query of a zone per outageInterval, because a zone may list many
// unresponsive servers.
func (p *Pool) countForOutageDetection(answered bool) {
	p.unansweredShare -= p.unansweredShare / outageQueries
	if !answered {
		p.unansweredShare += 1. / outageQueries
	}
	p.hedgeBudget.outage.Store(p.unansweredShare > 0.5)
}

// FillStats sets the fields of s that describe queries and servers, and adds the memory of the Pool to s.Bytes, in
// bytes.
func (p *Pool) FillStats(s *observe.RecursorStats) {
	c := &p.counters
	s.Wire, s.TCP = c.wire.Load(), c.tcp.Load()
	s.Hedges, s.HedgeWins, s.Denied = c.hedges.Load(), c.hedgeWins.Load(), p.hedgeBudget.denied.Load()
	s.Timeouts, s.Failovers = c.timeouts.Load(), c.failovers.Load()
	s.Lame, s.Ignored = c.lame.Load(), c.ignored.Load()
	if !p.hedgeBudget.off {
		s.Budget = p.hedgeBudget.account.Tokens()
	}
	now := p.elapsed()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.InFlight = len(p.sockets.open)
	s.Servers = len(p.servers.all)
	backedOff := make(map[netip.AddrPort]bool)
	for at, v := range p.servers.all {
		if v.avoidUntil > now {
			backedOff[at] = true
		}
	}
	for k, v := range p.healthByZone.all {
		if v.avoidUntil > now {
			backedOff[k.addr] = true
		}
	}
	s.Resting = len(backedOff)
	s.Bytes += int64(len(p.servers.all)*serverBytes + len(p.healthByZone.all)*healthBytes + (len(p.lame.all)+len(p.zones.all))*lameBytes)
	s.FirstContact = p.firstRTTs.hedgeDelay
}

// ReportBogus records that the given server of a zone has sent invalid signatures for a name. Other servers are then
// preferred, as after ErrUnsigned from Task.CheckResponse.
func (p *Pool) ReportBogus(zone string, server netip.AddrPort, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lame.recordResponse(lameKey{zone, server}, name, ErrUnsigned, p.elapsed())
}
