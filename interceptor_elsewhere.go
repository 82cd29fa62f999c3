package hedge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/race"
)

// A trail is where a call's primary went, for hedge_elsewhere. The primary's context leads
// to it, by trailKey. If that context is used for other calls as well, it is where the last went.
type trail struct {
	primary atomic.Pointer[backend] // nil: not known
}

type trailKey struct{}

// detours are where the hedges of a call went, and those that were refused.
type detours struct {
	mu      sync.Mutex
	went    [1 + race.MaxHedges]*backend
	refused [1 + race.MaxHedges]bool
}

// A detour is the context of hedge n. By trailKey, it leads to itself.
type detour struct {
	context.Context
	*trail        // the primary's
	method string // of the call; what is called on behalf of the hedge has another
	all    *detours
	n      int
}

func (d *detour) Value(key any) any {
	if key == (trailKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// refused reports whether the hedge was not sent, because the balancer had no other backend.
func (d *detour) refused() bool {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	return d.all.refused[d.n]
}

// rank says how good backend b is for the hedge: 0 if no other attempt of the call went
// there, 1 if only hedges did, 2 if the primary did.
func (d *detour) rank(b *backend) int {
	if p := d.primary.Load(); p != nil && p.addr == b.addr {
		return 2
	}
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	for n, other := range d.all.went {
		if n != d.n && other != nil && other.addr == b.addr {
			return 1
		}
	}
	return 0
}

// ends takes note of how the pick for the hedge ended: with b, or refused if that is nil. A
// hedge that gRPC retries, and that is refused then, had been sent.
func (d *detour) ends(b *backend) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if b != nil {
		d.all.went[d.n] = b
	}
	d.all.refused[d.n] = d.all.went[d.n] == nil
}

// maxPicks is how often the child's picker is asked for one hedge.
const maxPicks = 5

// errSameBackend ends a hedge. [codes.Canceled] because that is how losers end, and because
// retries leave it alone.
var errSameBackend = status.Error(codes.Canceled, "hedge_elsewhere: there is no other backend for the hedge")

func init() { balancer.Register(elsewhereBuilder{}) }

// elsewhereBuilder makes balancers of the policy hedge_elsewhere, see [Interceptor].
type elsewhereBuilder struct{}

func (elsewhereBuilder) Name() string { return "hedge_elsewhere" }

func (elsewhereBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &elsewhere{cc: cc, opts: opts}
}

// elsewhereConfig is the parsed configuration of hedge_elsewhere.
type elsewhereConfig struct {
	serviceconfig.LoadBalancingConfig
	builder balancer.Builder
	child   serviceconfig.LoadBalancingConfig // builder's; nil: none
}

// ParseConfig reads {"childPolicy":[{"NAME":CONFIG}, …]}, of which the first whose name is
// registered counts. Without a childPolicy it is round_robin.
func (elsewhereBuilder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	var fields struct {
		ChildPolicy *[]map[string]json.RawMessage `json:"childPolicy"`
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("hedge_elsewhere: %w in %s", err, text)
	}
	if fields.ChildPolicy == nil {
		return &elsewhereConfig{builder: balancer.Get(roundrobin.Name)}, nil
	}
	unknown := make([]string, 0, len(*fields.ChildPolicy))
	for i, policy := range *fields.ChildPolicy {
		if len(policy) != 1 {
			return nil, fmt.Errorf("hedge_elsewhere: childPolicy[%d] has %d names instead of one in %s", i, len(policy), text)
		}
		for name, config := range policy {
			c := &elsewhereConfig{builder: balancer.Get(name)}
			if c.builder == nil {
				unknown = append(unknown, fmt.Sprintf("%q", name))
				continue
			}
			if p, ok := c.builder.(balancer.ConfigParser); ok {
				child, err := p.ParseConfig(config)
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

// elsewhere is a balancer that sends a hedge to a backend that its call has not used. Which
// backends there are, and which one is next, is its child's to say. If the configuration
// names another child, the new one takes over as soon as it is ready, or the old one is not.
type elsewhere struct {
	cc   balancer.ClientConn
	opts balancer.BuildOptions

	telling sync.Mutex // held while a child hears of its connections, or is closed as another takes over; locked before mu

	mu      sync.Mutex      // guards the fields below, and the state and the connections of children
	current *elsewhereChild // nil: there is none yet, or no more
	next    *elsewhereChild // takes over from current; nil: none does
}

// latest returns the child that hears of updates; nil if there is none.
func (e *elsewhere) latest() *elsewhereChild {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next != nil {
		return e.next
	}
	return e.current
}

func (e *elsewhere) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*elsewhereConfig)
	if !ok {
		config = &elsewhereConfig{builder: balancer.Get(roundrobin.Name)}
	}
	c := e.latest()
	if c == nil || c.name != config.builder.Name() {
		c = e.switchTo(config.builder)
	}
	s.BalancerConfig = config.child
	return c.lb.UpdateClientConnState(s)
}

// switchTo makes a child, which takes over from the current one when it may.
func (e *elsewhere) switchTo(b balancer.Builder) *elsewhereChild {
	c := &elsewhereChild{
		ClientConn: e.cc, parent: e, name: b.Name(), conns: make(map[*backend]bool),
		state: balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)},
	}
	e.mu.Lock()
	dropped := e.next
	if e.current == nil {
		e.current = c
	} else {
		e.next = c
	}
	e.mu.Unlock()
	if dropped != nil {
		dropped.close()
	}
	c.lb = b.Build(c, e.opts)
	return c
}

func (e *elsewhere) ResolverError(err error) {
	if c := e.latest(); c != nil {
		c.lb.ResolverError(err)
		return
	}
	e.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)})
}

// UpdateSubConnState is not called: every connection has a listener.
func (e *elsewhere) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

func (e *elsewhere) ExitIdle() {
	if c := e.latest(); c != nil {
		c.lb.ExitIdle()
	}
}

func (e *elsewhere) Close() {
	e.mu.Lock()
	children := [...]*elsewhereChild{e.current, e.next}
	e.current, e.next = nil, nil
	e.mu.Unlock()
	for _, c := range children {
		if c != nil {
			c.close()
		}
	}
}

// An elsewhereChild is a child's balancer, and its ClientConn.
type elsewhereChild struct {
	balancer.ClientConn // the parent's
	parent              *elsewhere
	name                string
	lb                  balancer.Balancer

	state balancer.State    // the last one
	conns map[*backend]bool // true: ready
}

// serves reports whether the child was not replaced or closed. The caller holds parent.mu.
func (c *elsewhereChild) serves() bool { return c == c.parent.current || c == c.parent.next }

// close closes the child and the connections that it leaves open. It does not serve any more.
func (c *elsewhereChild) close() {
	c.lb.Close()
	c.parent.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.parent.mu.Unlock()
	for b := range conns {
		b.SubConn.Shutdown()
	}
}

func (c *elsewhereChild) UpdateState(s balancer.State) {
	e := c.parent
	e.mu.Lock()
	defer e.mu.Unlock()
	if !c.serves() {
		return
	}
	if s.Picker == nil { // gRPC waits for another
		s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	c.state = s
	if next := e.next; next != nil && (e.current.state.ConnectivityState != connectivity.Ready || next.state.ConnectivityState != connectivity.Connecting) {
		old := e.current
		e.current, e.next, c = next, nil, next
		go func() {
			e.telling.Lock()
			defer e.telling.Unlock()
			old.close()
		}()
	}
	if c == e.current {
		e.cc.UpdateState(balancer.State{ConnectivityState: c.state.ConnectivityState, Picker: &elsewherePicker{c.state.Picker, c}})
	}
}

func (c *elsewhereChild) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	b := &backend{child: c}
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

func (c *elsewhereChild) RemoveSubConn(sc balancer.SubConn) { sc.Shutdown() }

func (c *elsewhereChild) UpdateAddresses(sc balancer.SubConn, addrs []resolver.Address) {
	sc.UpdateAddresses(addrs) //lint:ignore SA1019 for policies that still call it
}

// alone reports whether no other backend than b is ready.
func (c *elsewhereChild) alone(b *backend) bool {
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
	child *elsewhereChild
	addr  string
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

// elsewherePicker picks what the child's picker does, for a hedge that of several.
type elsewherePicker struct {
	balancer.Picker // the child's
	child           *elsewhereChild
}

func (p *elsewherePicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	r, err := p.Picker.Pick(info)
	b, ok := r.SubConn.(*backend)
	if err != nil || !ok {
		return r, err
	}
	switch call := info.Ctx.Value(trailKey{}).(type) {
	case *trail:
		call.primary.Store(b)
	case *detour:
		if call.method == info.FullMethodName {
			return p.pickElsewhere(call, info, r, b)
		}
	}
	r.SubConn = b.SubConn
	return r, nil
}

// pickElsewhere returns the best of maxPicks picks, of which the first is r with backend b. It
// returns errSameBackend if that is the primary's, though others are ready. No lock is held
// meanwhile: hedge_elsewhere may be found again below.
func (p *elsewherePicker) pickElsewhere(d *detour, info balancer.PickInfo, r balancer.PickResult, b *backend) (balancer.PickResult, error) {
	best, rank := b, d.rank(b)
	alone := rank == 2 && p.child.alone(b)
	others := make([]balancer.PickResult, 0, maxPicks)
	for rank > 0 && !alone && len(others)+1 < maxPicks {
		another, err := p.Picker.Pick(info)
		if err != nil {
			break
		}
		if b, ok := another.SubConn.(*backend); ok && d.rank(b) < rank {
			another, r, best, rank = r, another, b, d.rank(b)
		}
		others = append(others, another)
	}
	var err error
	if rank == 2 && !alone {
		others, r, best, err = append(others, r), balancer.PickResult{}, nil, errSameBackend
	} else {
		r.SubConn = best.SubConn
	}
	for _, o := range others { // not before the last pick: a child that counts what is out leaves their backend alone
		if o.Done != nil {
			o.Done(balancer.DoneInfo{})
		}
	}
	d.ends(best)
	return r, err
}
