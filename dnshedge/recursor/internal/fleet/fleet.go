// Package fleet asks the servers of DNS zones: which of them, when the next one, and when another one
// because the first is late. It learns how fast they are, which are silent, and which do not serve
// a zone that they should.
package fleet

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
	recent = 32 // queries that tell whether there is an outage

	tellEvery = time.Second // of a zone, how often silence tells of one

	serverBytes = 160 // that a server takes, with its place in the table
	lameBytes   = 640 // that a mark or a zone takes, with its name

	standingBytes = 160 // that a standing takes, with its place in the table
)

// Fleet is all servers that are known, and how they are asked. It is safe for concurrent use.
type Fleet struct {
	// Set by New.
	conf      *Config
	perServer int32
	perZone   int32
	epoch     time.Time
	ctx       context.Context    // of all queries
	cancel    context.CancelFunc // ends them

	// Safe for concurrent use.
	hedges *hedges
	counts counts
	wg     sync.WaitGroup // of the goroutines that ask, and those that look for more servers

	mu       sync.Mutex // guards the fields below, and what they point to
	closed   bool
	servers  servers
	stands   standings
	lame     lameMarks
	zones    zones
	families [2]family // IPv4 and IPv6
	sockets  sockets
	first    *firstContacts
	quiet    float64 // the share of recent queries that had no answer, as a moving average
}

// counts are what Stats counts, besides hedges that were denied.
type counts struct {
	wire, tcp, hedges, hedgeWins, timeouts, failovers, lame, ignored atomic.Int64
}

// New returns a Fleet, which must be closed.
func New(conf Config) *Fleet {
	f := &Fleet{conf: &conf, epoch: time.Now(), hedges: newHedges(conf.Hedge), first: newFirstContacts(cmp.Or(conf.Hedge.Percentile, 65) / 100)}
	if d, ok := conf.Dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		f.conf.Dialer = nil // sockets are opened without one
	}
	f.perServer = int32(min(cmp.Or(conf.PerServer, 64), math.MaxInt32))
	f.perZone = int32(min(cmp.Or(conf.PerZone, 256), math.MaxInt32))
	bytes := cmp.Or(conf.MaxBytes, 16<<20)
	names := int(min(bytes/16/lameBytes, math.MaxInt32)) // marks, and zones besides
	f.servers = servers{int(min(bytes*3/4/serverBytes, math.MaxInt32)), make(map[netip.AddrPort]*server)}
	f.stands = standings{maphash.MakeSeed(), int(min(bytes/8/standingBytes, math.MaxInt32)), make(map[standingKey]*standing)}
	f.lame = lameMarks{names, make(map[lameKey]mark)}
	f.zones = zones{names, make(map[string]*zone)}
	f.sockets.open = make(map[*query]struct{})
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Close ends all that is under way, and waits for it.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	f.cancel()
	for q := range f.sockets.open {
		q.stop()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// enter counts one more goroutine, which must end with wg.Done. It reports false after Close. The
// caller holds mu.
func (f *Fleet) enter() bool {
	if !f.closed {
		f.wg.Add(1)
	}
	return !f.closed
}

// now is the time since epoch.
func (f *Fleet) now() time.Duration { return time.Since(f.epoch) }

// MayHedge reports whether the budget has a hedge.
func (f *Fleet) MayHedge() bool { return f.hedges.has() }

// tell counts a query that was answered, or not. When more than half are not, hedges
// would only add to what is wrong. Whoever has a zone can name servers that are silent, so one zone tells of it
// once in tellEvery. The caller holds mu.
func (f *Fleet) tell(answered bool) {
	f.quiet -= f.quiet / recent
	if !answered {
		f.quiet += 1. / recent
	}
	f.hedges.outage.Store(f.quiet > 0.5)
}

// Fill adds the fleet's part to s.
func (f *Fleet) Fill(s *observe.RecursorStats) {
	c := &f.counts
	s.Wire, s.TCP = c.wire.Load(), c.tcp.Load()
	s.Hedges, s.HedgeWins, s.Denied = c.hedges.Load(), c.hedgeWins.Load(), f.hedges.denied.Load()
	s.Timeouts, s.Failovers = c.timeouts.Load(), c.failovers.Load()
	s.Lame, s.Ignored = c.lame.Load(), c.ignored.Load()
	if !f.hedges.off {
		s.Budget = f.hedges.account.Tokens()
	}
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.InFlight = len(f.sockets.open)
	s.Servers = len(f.servers.all)
	resting := make(map[netip.AddrPort]bool)
	for at, v := range f.servers.all {
		if v.until > now {
			resting[at] = true
		}
	}
	for k, v := range f.stands.all {
		if v.until > now {
			resting[k.addr] = true
		}
	}
	s.Resting = len(resting)
	s.Bytes += int64(len(f.servers.all)*serverBytes + len(f.stands.all)*standingBytes + (len(f.lame.all)+len(f.zones.all))*lameBytes)
	s.FirstContact = f.first.late
}

// Blame takes that a server of a zone has sent, about a name, what is not signed rightly, as if Task.Judge had said so.
func (f *Fleet) Blame(zone string, server netip.AddrPort, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lame.note(lameKey{zone, server}, name, ErrUnsigned, f.now())
}
