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

	outageInterval = time.Second // least time between two timeouts of one zone that count for an outage

	serverBytes = 160 // estimated memory of a server and its table entry
	lameBytes   = 640 // estimated memory of a lameRecord or a zoneState, with its name

	healthBytes = 160 // estimated memory of a zoneServerHealth and its table entry
)

// A Pool sends queries to name servers, and stores the health of the servers. It is safe for concurrent use.
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

	mu              sync.Mutex // guards the fields below, and what they point to
	closed          bool
	servers         serverTable
	healthByZone    healthTable
	lame            lameTable
	zones           zoneTable
	families        [2]familyHealth // IPv4 and IPv6
	sockets         socketLimiter
	firstRTTs       *firstRTTs
	unansweredShare float64 // share of unanswered queries among the recent ones, as a moving average
}

// queryCounters are the counters of observe.RecursorStats that concern queries.
type queryCounters struct {
	wire, tcp, hedges, hedgeWins, timeouts, failovers, lame, ignored atomic.Int64
}

// NewPool returns a Pool. The caller must call Close.
func NewPool(conf Config) *Pool {
	f := &Pool{conf: &conf, epoch: time.Now(), hedgeBudget: newHedgeBudget(conf.Hedge), firstRTTs: newFirstRTTs(cmp.Or(conf.Hedge.Percentile, 0.65))}
	if d, ok := conf.Dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		f.conf.Dialer = nil // a plain Dialer is not needed to open sockets
	}
	f.maxPerServer = int32(min(cmp.Or(conf.MaxPerServer, 64), math.MaxInt32))
	f.maxPerZone = int32(min(cmp.Or(conf.MaxPerZone, 256), math.MaxInt32))
	bytes := cmp.Or(conf.MaxBytes, 16<<20)
	names := int(min(bytes/16/lameBytes, math.MaxInt32)) // of lame records and of zones
	f.servers = serverTable{int(min(bytes*3/4/serverBytes, math.MaxInt32)), make(map[netip.AddrPort]*server)}
	f.healthByZone = healthTable{maphash.MakeSeed(), int(min(bytes/8/healthBytes, math.MaxInt32)), make(map[healthKey]*zoneServerHealth)}
	f.lame = lameTable{names, make(map[lameKey]lameRecord)}
	f.zones = zoneTable{names, make(map[string]*zoneState)}
	f.sockets.open = make(map[*query]struct{})
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Close ends all queries and searches, and waits for their goroutines.
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

// addGoroutine adds a goroutine to wg and reports true. The goroutine must call wg.Done. After Close, addGoroutine
// reports false and adds none. The caller holds mu.
func (f *Pool) addGoroutine() bool {
	if !f.closed {
		f.wg.Add(1)
	}
	return !f.closed
}

// elapsed returns the time since Pool.epoch.
func (f *Pool) elapsed() time.Duration { return time.Since(f.epoch) }

// HasHedgeBudget reports whether the hedge budget has a token. If there is none, it counts a denied hedge.
func (f *Pool) HasHedgeBudget() bool { return f.hedgeBudget.hasToken() }

// recordForOutage counts a query as answered or unanswered. While more than half of the recent queries are
// unanswered, hedges would only add load and are suspended. The caller holds mu.
//
// The caller counts at most one unanswered query of a zone per outageInterval, because a zone may list many
// unresponsive servers.
func (f *Pool) recordForOutage(answered bool) {
	f.unansweredShare -= f.unansweredShare / outageQueries
	if !answered {
		f.unansweredShare += 1. / outageQueries
	}
	f.hedgeBudget.outage.Store(f.unansweredShare > 0.5)
}

// FillStats sets the statistics of the Pool in s, and adds its memory to s.Bytes.
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

// ReportBogus records that a server of a zone has sent invalid signatures for a name. It has the effect of
// ErrUnsigned, see Task.CheckResponse.
func (f *Pool) ReportBogus(zone string, server netip.AddrPort, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lame.recordResponse(lameKey{zone, server}, name, ErrUnsigned, f.elapsed())
}
