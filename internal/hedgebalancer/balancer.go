// Package hedgebalancer is the gRPC load balancing policy hedge_elsewhere, which sends a hedge to a
// backend that its call has not used. Importing it registers the policy.
//
// The policy learns of hedges by the contexts of calls: a primary's leads by [Key] to a [Trail],
// where the policy notes the primary's backend, and a hedge's is a [Detour].
package hedgebalancer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"
)

// How often the child's picker is asked for one hedge: maxPicks times, and where servers report their load once for each backend
// that is ready, up to maxPicksByLoad times.
const (
	maxPicks       = 5
	maxPicksByLoad = 20
)

// ErrSameBackend ends a hedge. [codes.Canceled] because that is how losers end, and because
// retries leave it alone. Of a hedge that was sent before, and is retried, it is no answer either.
var ErrSameBackend = status.Error(codes.Canceled, "hedge_elsewhere: there is no other backend for the hedge")

func init() { balancer.Register(builder{}) }

// builder makes balancers of the policy.
type builder struct{}

func (builder) Name() string { return "hedge_elsewhere" }

func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &policy{cc: cc, opts: opts}
}

// config is the parsed configuration of the policy.
type config struct {
	serviceconfig.LoadBalancingConfig
	builder balancer.Builder                  // of the child
	child   serviceconfig.LoadBalancingConfig // builder's; nil: none
}

// ParseConfig reads {"childPolicy":[{"NAME":CONFIG}, …]}, of which the first whose name is
// registered counts. Without a childPolicy it is round_robin. Another field is an error: it would be a childPolicy that was
// misspelt, and not be missed.
func (builder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	var fields struct {
		ChildPolicy *[]map[string]json.RawMessage `json:"childPolicy"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("hedge_elsewhere: %w in %s", err, text)
	}
	if fields.ChildPolicy == nil {
		return &config{builder: balancer.Get(roundrobin.Name)}, nil
	}
	unknown := make([]string, 0, len(*fields.ChildPolicy))
	for i, entry := range *fields.ChildPolicy {
		if len(entry) != 1 {
			return nil, fmt.Errorf("hedge_elsewhere: childPolicy[%d] has %d names instead of one in %s", i, len(entry), text)
		}
		for name, text := range entry {
			c := &config{builder: balancer.Get(name)}
			if c.builder == nil {
				unknown = append(unknown, fmt.Sprintf("%q", name))
				continue
			}
			if p, ok := c.builder.(balancer.ConfigParser); ok {
				child, err := p.ParseConfig(text)
				if err != nil {
					return nil, fmt.Errorf("hedge_elsewhere: childPolicy[%d], %s: %w", i, name, err)
				}
				c.child = child
			}
			return c, nil
		}
	}
	return nil, fmt.Errorf("hedge_elsewhere: childPolicy names no registered policy: [%s]", strings.Join(unknown, " "))
}

// A policy is a balancer that sends a hedge to a backend that its call has not used. Which
// backends there are, and which one is next, is its child's to say. If the configuration
// names another child, the new one takes over as soon as it is ready, or the old one is not.
type policy struct {
	cc   balancer.ClientConn
	opts balancer.BuildOptions

	reported atomic.Bool // a server has said how loaded it is

	telling sync.Mutex // held while a child hears of its connections, or is closed as another takes over; locked before mu

	mu      sync.Mutex // guards the fields below, and the state and the connections of children
	current *child     // nil: there is none yet, or no more
	next    *child     // takes over from current; nil: none does
}

// latest returns the child that hears of updates; nil if there is none.
func (p *policy) latest() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		return p.next
	}
	return p.current
}

func (p *policy) UpdateClientConnState(s balancer.ClientConnState) error {
	given, ok := s.BalancerConfig.(*config)
	if !ok {
		given = &config{builder: balancer.Get(roundrobin.Name)}
	}
	c := p.latest()
	if c == nil || c.name != given.builder.Name() {
		c = p.switchTo(given.builder)
	}
	s.BalancerConfig = given.child
	return c.lb.UpdateClientConnState(s)
}

// switchTo makes a child, which takes over from the current one when it may.
func (p *policy) switchTo(b balancer.Builder) *child {
	c := &child{
		ClientConn: p.cc, parent: p, name: b.Name(), conns: make(map[*backend]bool),
		state: balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)},
	}
	p.mu.Lock()
	dropped := p.next
	if p.current == nil {
		p.current = c
	} else {
		p.next = c
	}
	p.mu.Unlock()
	if dropped != nil {
		dropped.close()
	}
	c.lb = b.Build(c, p.opts)
	return c
}

func (p *policy) ResolverError(err error) {
	if c := p.latest(); c != nil {
		c.lb.ResolverError(err)
		return
	}
	p.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)})
}

// UpdateSubConnState is not called: every connection has a listener.
func (p *policy) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

func (p *policy) ExitIdle() {
	if c := p.latest(); c != nil {
		c.lb.ExitIdle()
	}
}

func (p *policy) Close() {
	p.mu.Lock()
	children := [...]*child{p.current, p.next}
	p.current, p.next = nil, nil
	p.mu.Unlock()
	for _, c := range children {
		if c != nil {
			c.close()
		}
	}
}

// A child is a child's balancer, and its ClientConn.
type child struct {
	balancer.ClientConn // the parent's
	parent              *policy
	name                string
	lb                  balancer.Balancer

	state balancer.State    // the last one
	conns map[*backend]bool // true: ready
}

// serves reports whether the child was not replaced or closed. The caller holds parent.mu.
func (c *child) serves() bool { return c == c.parent.current || c == c.parent.next }

// close closes the child and the connections that it leaves open. It does not serve any more.
func (c *child) close() {
	c.lb.Close()
	c.parent.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.parent.mu.Unlock()
	for b := range conns {
		b.SubConn.Shutdown()
	}
}

func (c *child) UpdateState(s balancer.State) {
	p := c.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.serves() {
		return
	}
	if s.Picker == nil { // gRPC waits for another
		s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	c.state = s
	if next := p.next; next != nil && (p.current.state.ConnectivityState != connectivity.Ready || next.state.ConnectivityState != connectivity.Connecting) {
		old := p.current
		p.current, p.next, c = next, nil, next
		go func() {
			p.telling.Lock()
			defer p.telling.Unlock()
			old.close()
		}()
	}
	if c == p.current {
		p.cc.UpdateState(balancer.State{ConnectivityState: c.state.ConnectivityState, Picker: &picker{c.state.Picker, c}})
	}
}

func (c *child) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	b := &backend{child: c, meter: meter{some: &c.parent.reported}}
	b.untold.backend, b.untold.over = b, true
	b.hears = b.hear
	if len(addrs) > 0 {
		b.addr = addrs[0].Addr
	}
	listener := opts.StateListener
	opts.StateListener = func(s balancer.SubConnState) {
		c.parent.telling.Lock()
		defer c.parent.telling.Unlock()
		switch serves := b.changed(s); {
		case !serves:
		case listener != nil:
			listener(s)
		default:
			//lint:ignore SA1019 for policies that still expect it
			c.lb.UpdateSubConnState(b, s)
		}
	}
	sc, err := c.ClientConn.NewSubConn(addrs, opts) //lint:ignore SA1019 there is no other; one address is the policy's concern
	if err != nil {
		return nil, err
	}
	b.SubConn = sc
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	if !c.serves() {
		sc.Shutdown()
		return nil, errors.New("hedge_elsewhere: a balancer that is closed asked for a connection")
	}
	c.conns[b] = false
	return b, nil
}

func (c *child) RemoveSubConn(sc balancer.SubConn) { sc.Shutdown() }

func (c *child) UpdateAddresses(sc balancer.SubConn, addrs []resolver.Address) {
	sc.UpdateAddresses(addrs) //lint:ignore SA1019 for policies that still call it
}

// alone reports whether no other backend than b is ready.
func (c *child) alone(b *backend) bool {
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	for other, ready := range c.conns {
		if ready && other.addr != b.addr {
			return false
		}
	}
	return true
}

// A backend is a child's connection to a server. Connections to the same address are to
// the same server: after a reconnection or an update of the resolver it may have another.
type backend struct {
	balancer.SubConn
	child *child
	addr  string
	meter
	untold use                     // of attempts whose end the child does not hear of
	hears  func(balancer.DoneInfo) // hear, where the child does not hear of the end either
}

// changed takes note of the state, and reports whether the child is to hear of it.
func (b *backend) changed(s balancer.SubConnState) bool {
	b.child.parent.mu.Lock()
	defer b.child.parent.mu.Unlock()
	if _, ok := b.child.conns[b]; ok {
		b.child.conns[b] = s.ConnectivityState == connectivity.Ready
	}
	return b.child.serves()
}

// RegisterHealthListener has the listener told of the health as well: outlier detection
// and health checks make a connection that is ready unusable by it.
func (b *backend) RegisterHealthListener(listener func(balancer.SubConnState)) {
	told := listener
	if listener != nil {
		told = func(s balancer.SubConnState) {
			if b.changed(s) {
				listener(s)
			}
		}
	}
	b.SubConn.RegisterHealthListener(told)
}

func (b *backend) Shutdown() {
	b.child.parent.mu.Lock()
	delete(b.child.conns, b)
	b.child.parent.mu.Unlock()
	b.SubConn.Shutdown()
}

// picker picks what the child's picker does, for a hedge that of several.
type picker struct {
	balancer.Picker // the child's
	child           *child
}

func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	r, err := p.Picker.Pick(info)
	b, ok := r.SubConn.(*backend)
	if err != nil || !ok {
		return r, err
	}
	switch call := info.Ctx.Value(Key{}).(type) {
	case *Trail:
		call.primary.Store(b.use(&r))
	case *Detour:
		return p.pickElsewhere(call, info, r, b)
	default:
		b.lead(&r)
	}
	return r, nil
}

// lead has the pick r of a call that is no attempt lead to the backend.
func (b *backend) lead(r *balancer.PickResult) {
	if r.SubConn = b.SubConn; r.Done == nil {
		r.Done = b.hears
		return
	}
	r.Done = b.also(r.Done)
}

// A choice is a pick for a hedge.
type choice struct {
	pick    balancer.PickResult
	backend *backend
	rank    int  // of the backend, see [Detour.rank]
	at      *use // the attempt of the call that has it; nil: none
	grade   grade
}

// choice returns what the pick r of backend b is for the hedge.
func (d *Detour) choice(r balancer.PickResult, b *backend, now time.Time) choice {
	rank, at := d.rank(b)
	reported, _ := b.read(now)
	return choice{r, b, rank, at, gradeOf(rank, reported)}
}

// outlook returns how often to ask for the hedge, and the grade of the best backend that is ready. Where no load is known,
// each that the call has not used is as good as the first one.
func (c *child) outlook(d *Detour, now time.Time) (limit int, best grade) {
	limit, best = maxPicks, worst
	if !c.parent.reported.Load() {
		return limit, best
	}
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	backends, known := 0, false
	for b, ready := range c.conns {
		if !ready {
			continue
		}
		rank, _ := d.rank(b)
		reported, said := b.read(now)
		if g := gradeOf(rank, reported); g.betterThan(best) {
			best = g
		}
		backends++
		known = known || said
	}
	if known {
		limit = min(max(backends, limit), maxPicksByLoad)
	}
	return limit, best
}

// pickElsewhere returns the best of several picks, of which the first is r with backend b. It
// returns ErrSameBackend if that is the primary's, though others are ready. No lock is held
// meanwhile: hedge_elsewhere may be found again below.
func (p *picker) pickElsewhere(d *Detour, info balancer.PickInfo, r balancer.PickResult, b *backend) (balancer.PickResult, error) {
	now := time.Now()
	got := d.choice(r, b, now)
	limit, best := p.child.outlook(d, now)
	alone := got.rank == 2 && p.child.alone(b)
	spares := make([]spare, 0, maxPicks)
	compared := false // two as good as the best one, but for their load; with more, all hedges would go to one server that has been idle
	for !alone && (got.rank > 0 || !compared && best.betterThan(got.grade)) && len(spares)+1 < limit {
		another, err := p.Picker.Pick(info)
		if err != nil {
			break
		}
		c, ok := another.SubConn.(*backend)
		if !ok {
			spares = append(spares, spare{done: another.Done})
			continue
		}
		next := d.choice(another, c, now)
		if next.grade.betterThan(got.grade) {
			got, next = next, got
		}
		compared = compared || got.grade.class == best.class && next.grade.class == best.class && next.backend != got.backend
		spares = append(spares, spare{next.pick.Done, next.at})
	}
	var own *use
	var err error
	if r = got.pick; got.rank == 2 && !alone {
		spares, r, err = append(spares, spare{r.Done, got.at}), balancer.PickResult{}, ErrSameBackend
	} else {
		own = got.backend.use(&r)
	}
	for _, s := range spares { // not before the last pick: a child that counts what is out leaves their backend alone
		s.end(own)
	}
	d.ends(own)
	return r, err
}
