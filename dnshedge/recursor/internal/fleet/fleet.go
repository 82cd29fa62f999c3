// Package fleet asks the servers of DNS zones: which of them, when the next one, and when another one
// because the first is late. It learns how fast they are, which are silent, and which do not serve
// a zone that they should.
package fleet

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
	"github.com/gohedge/hedge/observe"
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

	serverBytes = 160 // that a server takes, with its place in the table
	lameBytes   = 320 // that a mark or a zone takes, with its name
)

// Fleet is all servers that are known, and how they are asked. It is safe for
// concurrent use.
type Fleet struct {
	conf       Config
	perServer  int32
	perZone    int32
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

// Config says how a Fleet asks. The zero value has the defaults below.
type Config struct {
	Hedge Hedge

	// NoIPv4 and NoIPv6 keep it from asking servers at addresses of that family.
	NoIPv4, NoIPv6 bool

	// PrivateOK allows to ask servers at addresses that mean something in one network only.
	PrivateOK bool

	// PerServer is how many queries wait for one server's answers, and PerZone for those of one
	// zone's servers. Zero: 64 and 256.
	PerServer, PerZone int

	// MaxBytes bounds the memory that tables take, by an estimate. Zero: 16 MiB.
	MaxBytes int64

	// Dialer opens connections, over "udp" and "tcp". Nil: a net.Dialer.
	Dialer Dialer

	// Began is called before a query is sent, and Ended when it was answered or given up. They are
	// called by the goroutine that asks, and may be nil.
	Began func(context.Context, Attempt)
	Ended func(context.Context, Attempt, time.Duration, error)
}

// Hedge says when a question goes to a second server. The fields are those of recursor.Hedge, and have
// the same defaults.
type Hedge struct {
	Off           bool
	Percentile    float64
	BudgetPercent float64
	MaxPerSecond  float64
}

// Dialer opens connections.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Attempt is a query to a server. The fields are those of recursor.AttemptInfo.
type Attempt struct {
	Name    string
	Type    uint16
	Zone    string
	Server  netip.AddrPort
	TCP     bool
	Attempt int
	Hedge   bool
}

// New returns a Fleet, which must be closed.
func New(conf Config) *Fleet {
	f := &Fleet{conf: conf}
	f.perServer = int32(min(cmp.Or(conf.PerServer, 64), math.MaxInt32))
	f.perZone = int32(min(cmp.Or(conf.PerZone, 256), math.MaxInt32))
	f.dialer = conf.Dialer
	if d, ok := f.dialer.(*net.Dialer); ok && d.LocalAddr == nil && d.Control == nil && d.ControlContext == nil {
		f.dialer = nil
	}
	f.percentile = cmp.Or(conf.Hedge.Percentile, 65) / 100
	f.bucket = budget.NewBucket(cmp.Or(conf.Hedge.BudgetPercent, 15)/100, hedgeBurst)
	if n := conf.Hedge.MaxPerSecond; n > 0 {
		f.ceiling = rate.NewLimiter(rate.Limit(min(n, math.MaxFloat64)), int(min(max(n, 1), math.MaxInt32)))
	}
	bytes := cmp.Or(conf.MaxBytes, 16<<20)
	f.maxLame = int(min(bytes/16/lameBytes, math.MaxInt32))
	f.maxServers = int(min(bytes*3/4/serverBytes, math.MaxInt32))
	f.epoch = time.Now()
	f.servers = make(map[netip.AddrPort]*server)
	f.lame = make(map[lameKey]time.Duration)
	f.zones = make(map[string]*zone)
	f.open = make(map[*query]struct{})
	f.first.init()
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Close ends all that is under way, and waits for it.
func (f *Fleet) Close() {
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
func (f *Fleet) now() time.Duration { return time.Since(f.epoch) }

// Spend takes a hedge from the budget, or reports false.
func (f *Fleet) Spend() bool {
	if f.conf.Hedge.Off || f.outage.Load() {
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
func (f *Fleet) tell(answered bool) {
	f.quiet -= f.quiet / recent
	if !answered {
		f.quiet += 1. / recent
	}
	f.outage.Store(f.quiet > 0.5)
}

// zoneOf returns the zone of that name, for one more user. The caller holds mu.
func (f *Fleet) zoneOf(name string) *zone {
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
func (f *Fleet) leaveZone(z *zone, now time.Duration) {
	if z.users--; z.users == 0 && z.until <= now && f.zones[z.name] == z {
		delete(f.zones, z.name)
	}
}

// forgetZone forgets one of the zones that only rest: of a few, the one that ends that first. The caller holds mu.
func (f *Fleet) forgetZone() {
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

// Fill adds the fleet's part to s.
func (f *Fleet) Fill(s *observe.RecursorStats) {
	c := &f.counts
	s.Wire, s.TCP = c.wire.Load(), c.tcp.Load()
	s.Hedges, s.HedgeWins, s.Denied = c.hedges.Load(), c.hedgeWins.Load(), c.denied.Load()
	s.Timeouts, s.Failovers = c.timeouts.Load(), c.failovers.Load()
	s.Lame, s.Ignored = c.lame.Load(), c.ignored.Load()
	if !f.conf.Hedge.Off {
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
