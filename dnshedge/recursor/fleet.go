package recursor

import (
	"cmp"
	"context"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/sketch"
)

const (
	hedgeBurst = 20 // hedges that the budget holds at most

	maxSockets    = 1024             // open at a time
	maxLoose      = 512              // of them with a query of which little is hoped, when one more is left to itself
	answerTime    = 2 * time.Second  // how long an answer is awaited, whether somebody waits or not
	zoneRest      = 5 * time.Second  // of a zone whose servers are all silent (RFC 9520 §3.2)
	recent        = 32               // queries that tell whether there is an outage
	familySilence = 10               // queries in a row without an answer, after which a family rests
	familyRest    = time.Minute      //
	lameTime      = 15 * time.Minute // how long a server is not asked about a zone that it does not serve

	share       = 4   // the fleet takes 1/share of MaxBytes
	serverBytes = 160 // that a server takes, with its place in the table
	lameBytes   = 320 // that a mark or a zone takes, with its name
)

// fleet is all servers that are known, and how they are asked. It must be started before it is
// used. It is safe for concurrent use.
type fleet struct {
	hedge      Hedge
	noIPv4     bool
	noIPv6     bool
	privateOK  bool
	perServer  int32 // Limits.InFlight
	perZone    int32 // Limits.ZoneInFlight
	trace      *Trace
	dialer     Dialer // nil: sockets are opened without one
	bucket     *budget.Bucket
	ceiling    *rate.Limiter // nil: there is none
	maxServers int
	maxLame    int // marks, and zones besides
	epoch      time.Time
	counts     counts
	percentile float64            // of first contacts, in [0, 1]
	ctx        context.Context    // of all queries
	cancel     context.CancelFunc // ends them
	wg         sync.WaitGroup     // of the goroutines that ask, and those that look for more servers

	mu       sync.Mutex // guards the fields below
	closed   bool
	servers  map[netip.AddrPort]*server
	lame     map[lameKey]time.Duration // until when, since epoch
	zones    map[string]*zone          // that are asked, or rest
	families [2]family                 // IPv4 and IPv6
	sockets  slots
	open     map[*query]struct{} // that have a place, and so may have a socket
	loose    queue               // of them those of which little is hoped, the oldest first
	first    firstContacts
	quiet    float64 // the share of recent queries that had no answer, as a moving average
	outage   atomic.Bool
}

// counts are what Stats counts.
type counts struct {
	wire, tcp, hedges, hedgeWins, denied, timeouts, failovers, lame, ignored atomic.Int64
}

// family is what is known of IPv4 or IPv6.
type family struct {
	silent int           // queries in a row without an answer
	until  time.Duration // when it is asked first again, since epoch
}

// zone is a zone whose servers are asked, or that rests.
type zone struct {
	name  string
	slots slots
	users int           // asks under way, and queries in flight
	until time.Duration // when its servers are asked again, since epoch
}

// start makes the fleet ready. The resolver's fields are valid.
func (f *fleet) start(r *Resolver) {
	f.hedge = r.Hedge
	f.noIPv4, f.noIPv6, f.privateOK = r.NoIPv4, r.NoIPv6, r.PrivateOK
	f.perServer = int32(min(cmp.Or(r.Limits.InFlight, 64), math.MaxInt32))
	f.perZone = int32(min(cmp.Or(r.Limits.ZoneInFlight, 256), math.MaxInt32))
	f.trace = r.Trace
	if f.trace == nil {
		f.trace = new(Trace)
	}
	f.dialer = r.Dialer
	if d, ok := f.dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		f.dialer = nil
	}
	f.percentile = cmp.Or(f.hedge.Percentile, 65) / 100
	f.bucket = budget.NewBucket(cmp.Or(f.hedge.BudgetPercent, 15)/100, hedgeBurst)
	if n := f.hedge.MaxPerSecond; n > 0 {
		f.ceiling = rate.NewLimiter(rate.Limit(min(n, math.MaxFloat64)), int(min(max(n, 1), math.MaxInt32)))
	}
	bytes := cmp.Or(r.MaxBytes, 64<<20) / share
	f.maxLame = int(min(bytes/16/lameBytes, math.MaxInt32))
	f.maxServers = int(min(bytes*3/4/serverBytes, math.MaxInt32))
	f.epoch = time.Now()
	f.servers = make(map[netip.AddrPort]*server)
	f.lame = make(map[lameKey]time.Duration)
	f.zones = make(map[string]*zone)
	f.open = make(map[*query]struct{})
	f.first.init()
	f.ctx, f.cancel = context.WithCancel(context.Background())
}

// close ends all that is under way, and waits for it.
func (f *fleet) close() {
	f.mu.Lock()
	f.closed = true
	f.cancel()
	for q := range f.open {
		q.stop()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// now is the time since epoch.
func (f *fleet) now() time.Duration { return time.Since(f.epoch) }

// spend takes a hedge from the budget, or reports false.
func (f *fleet) spend() bool {
	if f.hedge.Off || f.outage.Load() {
		return false
	}
	ok := f.bucket.Spend()
	if ok && f.ceiling != nil && !f.ceiling.Allow() {
		f.bucket.GiveBack()
		ok = false
	}
	if !ok {
		f.counts.denied.Add(1)
	}
	return ok
}

// tell counts a query that was answered, or not. When more than half are not, hedges
// would only add to what is wrong. The caller holds mu.
func (f *fleet) tell(answered bool) {
	f.quiet -= f.quiet / recent
	if !answered {
		f.quiet += 1. / recent
	}
	f.outage.Store(f.quiet > 0.5)
}

// zoneOf returns the zone of that name, for one more user. The caller holds mu.
func (f *fleet) zoneOf(name string) *zone {
	z := f.zones[name]
	if z == nil {
		if len(f.zones) >= f.maxLame {
			f.forgetZone()
		}
		z = &zone{name: name}
		f.zones[name] = z
	}
	z.users++
	return z
}

// leaveZone ends the use of a zone. The caller holds mu.
func (f *fleet) leaveZone(z *zone, now time.Duration) {
	if z.users--; z.users == 0 && z.until <= now && f.zones[z.name] == z {
		delete(f.zones, z.name)
	}
}

// forgetZone forgets one of the zones that only rest: of a few, the one that ends that first. The caller holds mu.
func (f *fleet) forgetZone() {
	var first *zone
	n := 0
	for _, z := range f.zones {
		if z.users == 0 && (first == nil || z.until < first.until) {
			first = z
		}
		if n++; n == samples {
			break
		}
	}
	if first != nil {
		delete(f.zones, first.name)
	}
}

// samples is how many entries of a table are compared to find one to forget.
const samples = 8

// fill adds the fleet's part to s.
func (f *fleet) fill(s *Stats) {
	c := &f.counts
	s.Wire, s.TCP = c.wire.Load(), c.tcp.Load()
	s.Hedges, s.HedgeWins, s.Denied = c.hedges.Load(), c.hedgeWins.Load(), c.denied.Load()
	s.Timeouts, s.Failovers = c.timeouts.Load(), c.failovers.Load()
	s.Lame, s.Ignored = c.lame.Load(), c.ignored.Load()
	if !f.hedge.Off {
		s.Budget = f.bucket.Tokens()
	}
	now := f.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.InFlight = len(f.open)
	s.Servers = len(f.servers)
	for _, v := range f.servers {
		if v.until > now {
			s.Resting++
		}
	}
	s.Bytes += int64(len(f.servers)*serverBytes + (len(f.lame)+len(f.zones))*lameBytes)
	s.FirstContact = f.first.late
}

// firstContacts is what first answers of servers took.
type firstContacts struct {
	window sketch.Window
	fresh  int           // samples since the figures below were made
	n      int           // samples, up to enoughContacts
	median time.Duration // expected of a server that was never asked
	late   time.Duration // after which such a server is late
}

const (
	coldMedian     = 50 * time.Millisecond
	coldLate       = 60 * time.Millisecond
	maxFirst       = 500 * time.Millisecond // of both: servers that are slow on purpose delay no others
	enoughContacts = 20                     // before their times are used
	everyContacts  = 8                      // their times are looked at again
)

func (c *firstContacts) init() { c.median, c.late = coldMedian, coldLate }

// add takes a sample.
func (c *firstContacts) add(now time.Time, took time.Duration, percentile float64) {
	c.window.Add(now, took)
	c.fresh++
	if c.n = min(c.n+1, enoughContacts); c.n == enoughContacts && c.fresh >= everyContacts {
		c.update(percentile)
	}
}

func (c *firstContacts) update(percentile float64) {
	c.fresh = 0
	c.median, _ = c.window.Quantile(0.5)
	c.late, _ = c.window.Quantile(percentile)
	c.median, c.late = min(c.median, maxFirst), min(c.late, maxFirst)
}
