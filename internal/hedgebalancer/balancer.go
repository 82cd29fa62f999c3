// Package hedgebalancer implements the gRPC load balancing policy hedge_elsewhere. The policy sends a hedge to a
// backend that no other attempt of the call uses. Importing the package registers the policy.
//
// Directly above outlier detection, the policy also keeps losers from being counted. It then consists of two balancers.
// The upper one hides losers from outlier detection, see [loserFilter]. The lower one, below outlier detection, picks.
//
// The policy recognises attempts by the value of [ContextKey] in their context. For a primary, the value is a
// [PrimaryPick], which stores the primary's backend. For a hedge, it is a [HedgePick].
package hedgebalancer

import (
	"bytes"
	"context"
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

	"github.com/gohedge/hedge/internal/race"
)

// Limits for the number of times that the child policy is asked for a backend for one hedge. If servers report their
// load, the limit is the number of ready backends, but at least maxPicks and at most maxPicksByLoad. Otherwise the
// limit is maxPicks.
const (
	maxPicks       = 5
	maxPicksByLoad = 20
)

// ErrSameBackend is the status of a hedge that was not sent because there is no backend other than the primary's. Its
// code is CANCELLED, because gRPC does not retry that code, and losers have it too.
//
// The caller must never get this status. That could happen when gRPC retries a hedge, so package grpccall replaces it.
var ErrSameBackend = status.Error(codes.Canceled, "hedge_elsewhere: there is no other backend for the hedge")

func init() { balancer.Register(builder{}) }

// A builder creates balancers of the policy hedge_elsewhere. It implements [balancer.Builder] and
// [balancer.ConfigParser].
type builder struct{}

// Name implements [balancer.Builder]. It returns the name of the policy in service configs.
func (builder) Name() string { return policyName }

// Build implements [balancer.Builder]. It returns a new balancer of the policy for the gRPC connection cc. The balancer
// has no child until it gets its first configuration.
func (builder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &policy{cc: cc, opts: opts}
}

// A config is the parsed configuration of the policy hedge_elsewhere in a service config. It selects the child policy.
type config struct {
	serviceconfig.LoadBalancingConfig
	childBuilder balancer.Builder                  // creates the balancer of the child policy
	childConfig  serviceconfig.LoadBalancingConfig // configuration of the child policy; nil if it has none
}

// ParseConfig parses a configuration of the form {"childPolicy":[{"NAME":CONFIG}, …]}. The child policy is the first
// policy in the list whose name is registered. Without a list, it is round_robin. Unknown fields are errors, so that a
// misspelt childPolicy is noticed. If the child policy is outlier detection, its configuration is changed, see
// selectBelowOutlierDetection.
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
		return &config{childBuilder: balancer.Get(roundrobin.Name)}, nil
	}
	unknown := make([]string, 0, len(*fields.ChildPolicy))
	for i, entry := range *fields.ChildPolicy {
		if len(entry) != 1 {
			return nil, fmt.Errorf("hedge_elsewhere: childPolicy[%d] has %d names instead of one in %s", i, len(entry), text)
		}
		for name, text := range entry {
			c := &config{childBuilder: balancer.Get(name)}
			if c.childBuilder == nil {
				unknown = append(unknown, fmt.Sprintf("%q", name))
				continue
			}
			if name == outlierDetectionName {
				text = selectBelowOutlierDetection(text)
			}
			if p, ok := c.childBuilder.(balancer.ConfigParser); ok {
				child, err := p.ParseConfig(text)
				if err != nil {
					return nil, fmt.Errorf("hedge_elsewhere: childPolicy[%d], %s: %w", i, name, err)
				}
				c.childConfig = child
			}
			return c, nil
		}
	}
	return nil, fmt.Errorf("hedge_elsewhere: childPolicy names no registered policy: [%s]", strings.Join(unknown, " "))
}

// A policy is a balancer that sends a hedge to a backend that no other attempt of the call uses. It gets backends from
// the balancer of a child policy, such as round_robin. For other calls, it uses the backend that the child selects
// first.
//
// If a new configuration names another child policy, a new child replaces the old child gracefully. The old child stays
// in use until it is not ready, or until the new child has left the state Connecting.
type policy struct {
	cc   balancer.ClientConn
	opts balancer.BuildOptions

	hasLoadReports atomic.Bool // a server has sent a load report

	listenerMu sync.Mutex // held while a child handles the state of a connection, or is closed after its replacement; must be locked before mu

	mu      sync.Mutex // guards the fields below, and the fields state and ready of the children
	current *child     // child whose picker is used; nil before the first configuration and after Close
	next    *child     // child that will replace current; nil if there is none
}

// latestChild returns the child that gets updates of the resolver: next, or current if next is nil. It returns nil if
// there is no child.
func (p *policy) latestChild() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		return p.next
	}
	return p.current
}

// UpdateClientConnState implements [balancer.Balancer]. It passes the state of the resolver to the latest child. Before
// that, it starts a new child if the configuration names another child policy.
func (p *policy) UpdateClientConnState(s balancer.ClientConnState) error {
	conf, ok := s.BalancerConfig.(*config)
	if !ok {
		conf = &config{childBuilder: balancer.Get(roundrobin.Name)}
	}
	c := p.latestChild()
	if c == nil || c.name != conf.childBuilder.Name() {
		c = p.startChild(conf.childBuilder)
	}
	s.BalancerConfig = conf.childConfig
	return c.lb.UpdateClientConnState(s)
}

// startChild creates a child whose balancer is built by b, and makes it the current child. If there is a current child
// already, the new child becomes the next child, which will replace the current child later.
func (p *policy) startChild(b balancer.Builder) *child {
	c := &child{
		ClientConn: p.cc, parent: p, name: b.Name(), ready: make(map[*backend]bool),
		state: balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)},
	}
	p.mu.Lock()
	replaced := p.next
	if p.current == nil {
		p.current = c
	} else {
		p.next = c
	}
	p.mu.Unlock()
	if replaced != nil {
		replaced.close()
	}
	c.lb = b.Build(c, p.opts)
	return c
}

// ResolverError implements [balancer.Balancer]. It passes err to the latest child. Without a child, it makes all calls
// fail with err.
func (p *policy) ResolverError(err error) {
	if c := p.latestChild(); c != nil {
		c.lb.ResolverError(err)
		return
	}
	p.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)})
}

// UpdateSubConnState implements [balancer.Balancer] and does nothing. gRPC does not call it, because every connection
// has a StateListener.
func (p *policy) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle implements [balancer.Balancer]. It passes the call to the latest child.
func (p *policy) ExitIdle() {
	if c := p.latestChild(); c != nil {
		c.lb.ExitIdle()
	}
}

// Close implements [balancer.Balancer]. It closes the current child and the next child.
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

// A child is the balancer of a child policy, with its connections. It is also the [balancer.ClientConn] that this
// balancer uses, so that the policy observes its connections.
type child struct {
	balancer.ClientConn // of the policy
	parent              *policy
	name                string // name of the child policy
	lb                  balancer.Balancer

	state balancer.State    // state that the balancer has reported last
	ready map[*backend]bool // connections of the child; true if the connection is ready
}

// isActive reports whether the child is in use, as the current child or the next child. It is false after the child was
// replaced or closed. The caller must hold policy.mu.
func (c *child) isActive() bool { return c == c.parent.current || c == c.parent.next }

// close closes the balancer of the child and its remaining connections. It must only be called for a child that is not
// active.
func (c *child) close() {
	c.lb.Close()
	c.parent.mu.Lock()
	conns := c.ready
	c.ready = nil
	c.parent.mu.Unlock()
	for b := range conns {
		b.SubConn.Shutdown()
	}
}

// UpdateState implements [balancer.ClientConn]. It stores the state of the child. If the next child can replace the
// current child now, it becomes the current child. The state of the current child is passed to gRPC.
func (c *child) UpdateState(s balancer.State) {
	p := c.parent
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.isActive() {
		return
	}
	if s.Picker == nil { // gRPC treats a nil picker as a picker without a ready connection
		s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	c.state = s
	if next := p.next; next != nil && (p.current.state.ConnectivityState != connectivity.Ready || next.state.ConnectivityState != connectivity.Connecting) {
		old := p.current
		p.current, p.next, c = next, nil, next
		go func() {
			p.listenerMu.Lock()
			defer p.listenerMu.Unlock()
			old.close()
		}()
	}
	if c == p.current {
		p.cc.UpdateState(balancer.State{ConnectivityState: c.state.ConnectivityState, Picker: c.newPicker()})
	}
}

// newPicker returns a picker for the state of the child. Above outlier detection, it is a loserFilter, because another
// hedge_elsewhere policy picks below outlier detection.
func (c *child) newPicker() balancer.Picker {
	if c.name == outlierDetectionName {
		return loserFilter{c.state.Picker}
	}
	return &picker{c.state.Picker, c}
}

// NewSubConn implements [balancer.ClientConn]. It creates a connection whose state the policy observes.
func (c *child) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	b := &backend{child: c, loadTracker: loadTracker{anyReported: &c.parent.hasLoadReports}}
	b.finishedUse.backend, b.finishedUse.finished = b, true
	b.loadRecorder = b.recordLoad
	if len(addrs) > 0 {
		b.addr = addrs[0].Addr
	}
	listener := opts.StateListener
	opts.StateListener = func(s balancer.SubConnState) {
		c.parent.listenerMu.Lock()
		defer c.parent.listenerMu.Unlock()
		switch active := b.recordState(s); {
		case !active:
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
	if !c.isActive() {
		sc.Shutdown()
		return nil, errors.New("hedge_elsewhere: a closed balancer asked for a connection")
	}
	c.ready[b] = false
	return b, nil
}

// RemoveSubConn implements [balancer.ClientConn]. It shuts the connection down, as gRPC does.
func (c *child) RemoveSubConn(sc balancer.SubConn) { sc.Shutdown() }

// UpdateAddresses implements [balancer.ClientConn]. It passes the new addresses to the connection.
func (c *child) UpdateAddresses(sc balancer.SubConn, addrs []resolver.Address) {
	sc.UpdateAddresses(addrs) //lint:ignore SA1019 for policies that still call it
}

// isOnlyReady reports whether b is the only ready backend: all ready connections of the child have its address. In that
// case no other backend can serve a hedge.
func (c *child) isOnlyReady(b *backend) bool {
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	for other, ready := range c.ready {
		if ready && other.addr != b.addr {
			return false
		}
	}
	return true
}

// A backend is a connection of a child to a server. Connections with the same address are assumed to lead to the same
// server.
type backend struct {
	balancer.SubConn
	child *child
	addr  string // address of the server; "" if not known
	loadTracker
	finishedUse  backendUse              // use that all attempts share if the child sets no Done function
	loadRecorder func(balancer.DoneInfo) // the method recordLoad; Done function of picks if the child sets none
}

// recordState stores whether the connection is ready. The result is false if the child was replaced or closed. In that
// case the caller must not pass the state to the child.
func (b *backend) recordState(s balancer.SubConnState) bool {
	b.child.parent.mu.Lock()
	defer b.child.parent.mu.Unlock()
	if _, ok := b.child.ready[b]; ok {
		b.child.ready[b] = s.ConnectivityState == connectivity.Ready
	}
	return b.child.isActive()
}

// RegisterHealthListener implements [balancer.SubConn]. It also records the states that the listener gets, so that they
// determine which connections are ready. Outlier detection and health checks use these states to report a connected
// server as not ready.
func (b *backend) RegisterHealthListener(listener func(balancer.SubConnState)) {
	wrapped := listener
	if listener != nil {
		wrapped = func(s balancer.SubConnState) {
			if b.recordState(s) {
				listener(s)
			}
		}
	}
	b.SubConn.RegisterHealthListener(wrapped)
}

// Shutdown implements [balancer.SubConn]. It removes the connection from the child.
func (b *backend) Shutdown() {
	b.child.parent.mu.Lock()
	delete(b.child.ready, b)
	b.child.parent.mu.Unlock()
	b.SubConn.Shutdown()
}

// A picker selects the backend of each call. It asks the picker of a child, once for a call that is not a hedge, and
// possibly several times for a hedge. It implements [balancer.Picker].
type picker struct {
	balancer.Picker // of the child
	child           *child
}

// Pick implements [balancer.Picker]. It selects the backend of a call. The context of the call shows whether the call
// is a primary, a hedge or another call, see [ContextKey].
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	r, err := p.Picker.Pick(info)
	b, ok := r.SubConn.(*backend)
	if err != nil || !ok {
		return r, err
	}
	switch call := info.Ctx.Value(ContextKey{}).(type) {
	case *PrimaryPick:
		call.use.Store(b.trackUse(&r))
	case *HedgePick:
		return p.pickForHedge(call, info, r, b)
	default:
		b.trackLoad(&r)
	}
	return r, nil
}

// A loserFilter is a picker above outlier detection, which in turn is above another hedge_elsewhere policy. It selects
// the backend that outlier detection selects. It hides the ends of losers from outlier detection, which would count them
// as failures, but not from the policies below. It implements [balancer.Picker].
type loserFilter struct {
	balancer.Picker // of outlier detection
}

// Pick implements [balancer.Picker]. It treats a call that an attempt of another call makes as a primary, because that
// attempt may lose.
func (f loserFilter) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	number, isAttempt := race.AttemptNumber(info.Ctx)
	call := info.Ctx.Value(ContextKey{})
	if call == nil && isAttempt {
		call = new(PrimaryPick)
		info.Ctx = context.WithValue(info.Ctx, ContextKey{}, call)
	}
	r, err := f.Picker.Pick(info)
	b, ok := r.SubConn.(*backend)
	if err != nil || !ok {
		return r, err
	}
	r.SubConn = b.SubConn
	var use *backendUse // recorded by the policy below outlier detection
	switch call := call.(type) {
	case *PrimaryPick:
		use = call.use.Load()
	case *HedgePick:
		use = call.recordedUse()
	}
	if use != nil && r.Done != nil {
		var hedge context.Context
		if number > 0 {
			hedge = race.AttemptContext(info.Ctx)
		}
		r.Done = use.withoutLosers(info.Ctx, hedge, r.Done)
	}
	return r, nil
}

// trackLoad prepares r, a pick of backend b, for a call that is not an attempt. It replaces b by the connection that
// gRPC has created, and sets a Done function that records the load report of the server.
func (b *backend) trackLoad(r *balancer.PickResult) {
	if r.SubConn = b.SubConn; r.Done == nil {
		r.Done = b.loadRecorder
		return
	}
	r.Done = b.withLoadRecorder(r.Done)
}

// A candidate is a backend that the child has picked and a hedge may use.
type candidate struct {
	pick    balancer.PickResult // result of the child's picker
	backend *backend
	rank    int         // how other attempts use the backend, see [HedgePick.usageRank]
	use     *backendUse // use of the same backend by another attempt of the call; nil if there is none
	grade   grade
}

// newCandidate returns a candidate for the hedge d. The argument r is a result of the child's picker, which selects
// backend b. A load report that is outdated at the time now is ignored.
func (d *HedgePick) newCandidate(r balancer.PickResult, b *backend, now time.Time) candidate {
	rank, use := d.usageRank(b)
	reported, _ := b.currentLoad(now)
	return candidate{r, b, rank, use, gradeBackend(rank, reported)}
}

// pickLimit returns how many times the child may be asked for a backend for the hedge d, and the best grade of all
// ready backends. The child is asked until a backend with a good grade is found.
//
// If the load of no backend is known, pickLimit returns maxPicks and worstGrade, so that the first unused backend is
// taken.
func (c *child) pickLimit(d *HedgePick, now time.Time) (limit int, best grade) {
	limit, best = maxPicks, worstGrade
	if !c.parent.hasLoadReports.Load() {
		return limit, best
	}
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	backends, known := 0, false
	for b, ready := range c.ready {
		if !ready {
			continue
		}
		rank, _ := d.usageRank(b)
		reported, ok := b.currentLoad(now)
		if g := gradeBackend(rank, reported); g.isBetterThan(best) {
			best = g
		}
		backends++
		known = known || ok
	}
	if known {
		limit = min(max(backends, limit), maxPicksByLoad)
	}
	return limit, best
}

// pickForHedge selects the backend of the hedge d. The first candidate is r, the child's pick of backend b. It asks the
// child for further candidates until a candidate has a low load and is not used by another attempt.
//
// It returns ErrSameBackend if all picks selected the primary's backend although another backend is ready. It holds no
// lock while it calls the child's picker, because the child may contain another hedge_elsewhere policy.
func (p *picker) pickForHedge(d *HedgePick, info balancer.PickInfo, r balancer.PickResult, b *backend) (balancer.PickResult, error) {
	now := time.Now()
	chosen := d.newCandidate(r, b, now)
	limit, best := p.child.pickLimit(d, now)
	onlyReady := chosen.rank == 2 && p.child.isOnlyReady(b)
	unused := make([]unusedPick, 0, maxPicks)
	compared := false // two candidates of the best class were compared; comparing more would send all hedges to one idle server
	for !onlyReady && (chosen.rank > 0 || !compared && best.isBetterThan(chosen.grade)) && len(unused)+1 < limit {
		another, err := p.Picker.Pick(info)
		if err != nil {
			break
		}
		c, ok := another.SubConn.(*backend)
		if !ok {
			unused = append(unused, unusedPick{done: another.Done})
			continue
		}
		next := d.newCandidate(another, c, now)
		if next.grade.isBetterThan(chosen.grade) {
			chosen, next = next, chosen
		}
		compared = compared || chosen.grade.class == best.class && next.grade.class == best.class && next.backend != chosen.backend
		unused = append(unused, unusedPick{next.pick.Done, next.use})
	}
	var own *backendUse
	var err error
	if r = chosen.pick; chosen.rank == 2 && !onlyReady {
		unused, r, err = append(unused, unusedPick{r.Done, chosen.use}), balancer.PickResult{}, ErrSameBackend
	} else {
		own = chosen.backend.trackUse(&r)
	}
	for _, s := range unused { // after the last pick: a child that counts open picks avoids their backends until then
		s.reportEnd(own)
	}
	d.recordPick(own)
	return r, err
}
