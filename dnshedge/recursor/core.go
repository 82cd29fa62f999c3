package recursor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/waitgraph"
)

// A core is the internal state of a Resolver: its configuration with defaults, its cache, its servers, and its running
// lookups. The first use of the Resolver creates it.
type core struct {
	err error // error that names an invalid field; nil if the Resolver can be used

	conf         *Resolver
	trace        *Trace                 // copy of Resolver.Trace, because the program may change its Trace; not nil
	maxBytes     int64                  // limit of the estimated memory, in bytes
	maxHeldBytes int64                  // limit of heldBytes, in bytes
	types        []uint16               // address types to look up: A, AAAA, or both
	limits       *Limits                // Resolver.Limits, with defaults in place of zero values
	hints        []netip.AddrPort       // addresses of root servers for priming
	stubs        map[string]*delegation // Resolver.Zones by zone name
	validator    *chain.Validator       // nil if validation is off; otherwise all queries have the DO bit, and signatures in responses are kept
	hintsZone    *delegation            // delegation of the root to hints, for key queries during priming
	pool         *nameservers.Pool

	// Safe for concurrent use.
	cache       *cache
	waits       waitgraph.Graph // waits for nameLookups and zoneQueries
	nameLookups *waitgraph.Group[nameLookupKey, *nameLookup]
	zoneQueries *waitgraph.Group[zoneQueryKey, *zoneQuery]
	counters    resolverCounters
	heldBytes   atomic.Int64 // memory that waiting questions hold, in bytes, see reserveMemory

	tracePanicked atomic.Bool // a panic of a Trace function was logged

	ctx     context.Context // canceled by Close
	cancel  context.CancelCauseFunc
	running sync.WaitGroup // questions, and goroutines for them

	closeMu sync.RWMutex // guards closed
	closed  bool         // Close was called

	primeMu     sync.Mutex    // guards the following fields
	rootZone    *delegation   // delegation of the root; nil before priming
	primingDone chan struct{} // closed at the end of the running priming; nil if priming is not running
}

// resolverCounters counts events of questions, for the statistics of a Resolver (Stats).
type resolverCounters struct {
	questions, failures, localAnswers, lookups, scrubbed atomic.Int64
	limited                                              sync.Map // by field of Limits: number (*atomic.Int64) of questions that reached the limit
}

// errPanicked is the error of every call of a Resolver whose initialization has panicked.
var errPanicked = errors.New("recursor: Resolver panicked when it was first used")

// initOnce returns the internal state of r. The first call creates it. If a field of r is invalid, all calls return
// the same error, which names the field.
func (r *Resolver) initOnce() (*core, error) {
	r.once.Do(func() {
		r.core = &core{err: errPanicked, cache: new(cache)} // remains if applyConfig panics, because no answer may be returned without validation
		r.core.err = r.core.applyConfig(r)
	})
	return r.core, r.core.err
}

// minBytes is the minimum of Resolver.MaxBytes, except 0.
const minBytes = 1 << 20

// applyConfig initializes the state from the fields of the Resolver r. The error names the first invalid field.
func (c *core) applyConfig(r *Resolver) error {
	c.conf, c.trace = r, new(Trace)
	if r.Trace != nil {
		*c.trace = *r.Trace
	}
	c.nameLookups, c.zoneQueries = waitgraph.NewGroup[nameLookupKey, *nameLookup](&c.waits), waitgraph.NewGroup[zoneQueryKey, *zoneQuery](&c.waits)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if err := r.Limits.checkValues(); err != nil {
		return err
	}
	if err := r.Hedge.checkValues(); err != nil {
		return err
	}
	limits := r.Limits.withDefaults()
	c.limits = &limits
	hints := r.Hints
	if hints == nil {
		hints = rootServers()
	}
	for _, a := range hints {
		if !a.IsValid() {
			return fmt.Errorf("recursor: Resolver.Hints has %q; want an IP address", a)
		}
		c.hints = append(c.hints, netip.AddrPortFrom(a, dnsPort))
	}
	if len(c.hints) == 0 {
		return fmt.Errorf("recursor: Resolver.Hints is empty; want nil or addresses of root servers")
	}
	if err := c.readStubZones(r.Zones); err != nil {
		return err
	}
	switch {
	case r.MaxBytes == 0:
		c.maxBytes = 64 << 20
	case r.MaxBytes < minBytes:
		return fmt.Errorf("recursor: Resolver.MaxBytes is %d; want 0 or at least %d", r.MaxBytes, minBytes)
	default:
		c.maxBytes = r.MaxBytes
	}
	c.maxHeldBytes = c.maxBytes / 8
	c.cache.maxBytes = c.maxBytes - c.maxBytes/4 - c.maxHeldBytes // the remaining quarter is for the Pool
	if r.NoIPv4 && r.NoIPv6 {
		return fmt.Errorf("recursor: Resolver.NoIPv4 and NoIPv6 are both set; want one at most")
	}
	if !r.NoIPv4 {
		c.types = append(c.types, dns.TypeA)
	}
	if !r.NoIPv6 {
		c.types = append(c.types, dns.TypeAAAA)
	}
	c.pool = nameservers.NewPool(c.poolConfig())
	c.hintsZone = newEmptyDelegation(".")
	c.hintsZone.addrs, c.hintsZone.privateOK = c.hints, true
	if r.Trust.Off {
		return nil
	}
	return c.initValidator(r.Trust)
}

// disableAggressiveUse disables synthesized answers (RFC 8198). It is false except in tests.
var disableAggressiveUse bool

// adjustPolicy changes the validation policy of new Resolvers. It is nil except in tests.
var adjustPolicy func(*validate.Policy)

// initValidator creates the validator for the configuration t. The caches of the validator get a part of the cache's memory
// limit. The error names the first invalid field of t.
func (c *core) initValidator(t dnssec.Trust) error {
	var conf chain.Config
	if err := conf.ReadTrust("recursor: Resolver.Trust", t.Anchors, t.Insecure); err != nil {
		return err
	}
	conf.Policy = validate.Policy{
		AllowSHA1: t.AllowSHA1, RequireAllAlgorithms: t.RequireAllAlgorithms,
		Verifications: c.limits.Verifications, NSEC3Iterations: c.limits.NSEC3Iterations,
	}
	if adjustPolicy != nil {
		adjustPolicy(&conf.Policy)
	}
	conf.MaxBytes, conf.MaxAggressiveBytes = c.maxBytes/16, c.maxBytes/16
	c.cache.maxBytes -= conf.MaxBytes + conf.MaxAggressiveBytes
	if disableAggressiveUse {
		conf.MaxAggressiveBytes = 0
	}
	conf.ReportBogus = func(z *chain.Zone, server netip.AddrPort, name string) { c.pool.ReportBogus(z.Name, server, name) }
	conf.DropReferral = func(z *chain.Zone) { c.cache.removeEntry(cacheKey{name: z.Name, zone: true}) }
	conf.IsLocalError = isLocalFailure
	conf.Logger, conf.LogSource = c.conf.Logger, "recursor"
	conf.Go = func(f func(context.Context)) { c.running.Go(func() { f(c.ctx) }) }
	c.validator = chain.NewValidator(conf)
	return nil
}

// readStubZones validates Resolver.Zones, and stores a delegation for each of these stub zones in c.stubs. The error
// names an invalid zone or address.
func (c *core) readStubZones(zones map[string][]netip.AddrPort) error {
	c.stubs = make(map[string]*delegation, len(zones))
	for zone, addrs := range zones {
		name, ok := dnsname.CanonicalName(zone)
		if !ok || zone == "" {
			return fmt.Errorf("recursor: Resolver.Zones has zone %q; want a name such as corp.example", zone)
		}
		if c.stubs[name] != nil {
			return fmt.Errorf("recursor: Resolver.Zones has zone %q twice", name)
		}
		if len(addrs) == 0 {
			return fmt.Errorf("recursor: Resolver.Zones has no addresses for zone %q", zone)
		}
		for _, a := range addrs {
			if !a.IsValid() || a.Port() == 0 {
				return fmt.Errorf("recursor: Resolver.Zones has address %q for zone %q; want an address such as 192.0.2.1:53", a, zone)
			}
		}
		z := newEmptyDelegation(name)
		z.addrs, z.isStub, z.privateOK, z.chain.Stub = addrs, true, true, true
		c.stubs[name] = z
	}
	return nil
}

// poolConfig returns the configuration of the Pool of package nameservers, which sends the queries. The fields of the
// Resolver must have been checked before.
func (c *core) poolConfig() nameservers.Config {
	r := c.conf
	conf := nameservers.Config{
		Hedge: r.Hedge.toNameserversHedge(), NoIPv4: r.NoIPv4, NoIPv6: r.NoIPv6, PrivateOK: r.PrivateOK,
		MaxPerServer: c.limits.InFlight, MaxPerZone: c.limits.ZoneInFlight, MaxBytes: c.maxBytes / 4, Dialer: r.Dialer,
	}
	if c.trace.Attempt != nil {
		conf.OnQueryStart = func(ctx context.Context, a nameservers.Attempt) {
			defer c.recoverTracePanic()
			c.trace.Attempt(ctx, AttemptInfo(a))
		}
	}
	if c.trace.Done != nil {
		conf.OnQueryEnd = func(ctx context.Context, a nameservers.Attempt, took time.Duration, err error) {
			defer c.recoverTracePanic()
			c.trace.Done(ctx, AttemptInfo(a), took, err)
		}
	}
	return conf
}

// recoverTracePanic recovers a panic of a Trace function, and logs the first panic. It must be deferred by the caller
// of the function. Without it, a panic could end the process, because the function may run on a goroutine of the
// Resolver.
func (c *core) recoverTracePanic() {
	p := recover()
	if p == nil || c.tracePanicked.Swap(true) {
		return
	}
	usercode.RunGuarded(func() {
		cmp.Or(c.conf.Logger, slog.Default()).Error("recursor: Trace panicked; later panics are not logged", "panic", fmt.Sprint(p))
	})
}

// rootServers returns the addresses of a.root-servers.net to m.root-servers.net. The source is
// https://www.internic.net/domain/named.root; b has its address since 2023-11-27.
var rootServers = sync.OnceValue(func() []netip.Addr {
	var addrs []netip.Addr
	for _, s := range []string{
		"198.41.0.4", "2001:503:ba3e::2:30", // a
		"170.247.170.2", "2801:1b8:10::b", // b
		"192.33.4.12", "2001:500:2::c", // c
		"199.7.91.13", "2001:500:2d::d", // d
		"192.203.230.10", "2001:500:a8::e", // e
		"192.5.5.241", "2001:500:2f::f", // f
		"192.112.36.4", "2001:500:12::d0d", // g
		"198.97.190.53", "2001:500:1::53", // h
		"192.36.148.17", "2001:7fe::53", // i
		"192.58.128.30", "2001:503:c27::2:30", // j
		"193.0.14.129", "2001:7fd::1", // k
		"199.7.83.42", "2001:500:9f::42", // l
		"202.12.27.33", "2001:dc3::35", // m
	} {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
})

// Validate checks the fields of the Resolver. It returns an error that names an invalid field, or nil. It sends no
// queries.
func (r *Resolver) Validate() error {
	_, err := r.initOnce()
	return err
}

// Close ends all questions with net.ErrClosed and waits for all goroutines. ExchangeContext returns net.ErrClosed after
// Close. Close always returns nil.
func (r *Resolver) Close() error {
	c, err := r.initOnce()
	c.closeMu.Lock()
	c.closed = true
	c.closeMu.Unlock()
	c.cancel(net.ErrClosed)
	if err == nil {
		c.pool.Close()
	}
	c.running.Wait()
	return nil
}
