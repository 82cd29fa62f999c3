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
	f := &Pool{conf: &conf, epoch: time.Now(), hedgeBudget: newHedgeBudget(conf.Hedge), firstRTTs: newFirstRTTEstimator(cmp.Or(conf.Hedge.Percentile, 0.65))}
	if d, ok := conf.Dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		f.conf.Dialer = nil // a plain Dialer is not needed to open sockets
	}
	f.maxPerServer = int32(min(cmp.Or(conf.MaxPerServer, 64), math.MaxInt32))
	f.maxPerZone = int32(min(cmp.Or(conf.MaxPerZone, 256), math.MaxInt32))
	bytes := cmp.Or(conf.MaxBytes, 16<<20)
	names := int(min(bytes/16/lameBytes, math.MaxInt32)) // of lame records and of zones
	f.servers = serverTable{int(min(bytes*3/4/serverBytes, math.MaxInt32)), make(map[netip.AddrPort]*server)}
	f.healthByZone = healthTable{maphash.MakeSeed(), int(min(bytes/8/healthBytes, math.MaxInt32)), make(map[healthKey]*zoneServerHealth)}
	f.lame = lameTable{names, make(map[lameKey]lameness)}
	f.zones = zoneTable{names, make(map[string]*zoneState)}
	f.sockets.open = make(map[*query]struct{})
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Close stops all queries and all lookups of server addresses, and waits for their goroutines. Later QueryServers calls
// return net.ErrClosed.
func (f *Pool) Close() {
	f.mu.Lock()
	f.closed = true
	f.cancel()
	for q := range f.sockets.open {
		q.stopExchange()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// addGoroutine registers a goroutine that the caller is about to start, so that Close waits for it. If the result is
// true, the goroutine must call wg.Done at its end. After Close, the result is false, and no goroutine may start. The
// caller must hold mu.
func (f *Pool) addGoroutine() bool {
	if !f.closed {
		f.wg.Add(1)
	}
	return !f.closed
}

// elapsed returns the time since Pool.epoch, which is the creation of the Pool.
func (f *Pool) elapsed() time.Duration { return time.Since(f.epoch) }

// CheckHedgeBudget returns true if the hedge budget has a token, with which a hedge can be paid. It does not spend the
// token. It returns false if hedging is disabled or suspended. If only the token is missing, it counts a denied hedge.
func (f *Pool) CheckHedgeBudget() bool { return f.hedgeBudget.checkToken() }

// countForOutageDetection counts a query as answered or unanswered, for the detection of an outage. While more than half of the
// recent queries are unanswered, hedges are suspended, because they would only add load. The caller must hold mu.
//
// The caller must count at most one unanswered query of a zone per outageInterval, because a zone may list many
// unresponsive servers.
func (f *Pool) countForOutageDetection(answered bool) {
	f.unansweredShare -= f.unansweredShare / outageQueries
	if !answered {
		f.unansweredShare += 1. / outageQueries
	}
	f.hedgeBudget.outage.Store(f.unansweredShare > 0.5)
}

// FillStats sets the fields of s that describe queries and servers, and adds the memory of the Pool to s.Bytes, in
// bytes.
func (f *Pool) FillStats(s *observe.RecursorStats) {
	c := &f.counters
	s.Wire, s.TCP = c.wire.Load(), c.tcp.Load()
	s.Hedges, s.HedgeWins, s.Denied = c.hedges.Load(), c.hedgeWins.Load(), f.hedgeBudget.denied.Load()
	s.Timeouts, s.Failovers = c.timeouts.Load(), c.failovers.Load()
	s.Lame, s.Ignored = c.lame.Load(), c.ignored.Load()
	if !f.hedgeBudget.off {
		s.Budget = f.hedgeBudget.account.Tokens()
	}
	now := f.elapsed()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.InFlight = len(f.sockets.open)
	s.Servers = len(f.servers.all)
	backedOff := make(map[netip.AddrPort]bool)
	for at, v := range f.servers.all {
		if v.avoidUntil > now {
			backedOff[at] = true
		}
	}
	for k, v := range f.healthByZone.all {
		if v.avoidUntil > now {
			backedOff[k.addr] = true
		}
	}
	s.Resting = len(backedOff)
	s.Bytes += int64(len(f.servers.all)*serverBytes + len(f.healthByZone.all)*healthBytes + (len(f.lame.all)+len(f.zones.all))*lameBytes)
	s.FirstContact = f.firstRTTs.hedgeDelay
}

// ReportBogus records that the given server of a zone has sent invalid signatures for a name. Other servers are then
// preferred, as after ErrUnsigned from Task.CheckResponse.
func (f *Pool) ReportBogus(zone string, server netip.AddrPort, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lame.recordResponse(lameKey{zone, server}, name, ErrUnsigned, f.elapsed())
}
