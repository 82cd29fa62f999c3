// Package conns says over which connection a gRPC hedge goes: which of those that are given for hedges are ready, which targets they
// are for, and what a hedge costs. How they fare is known by package endpoint, to which they are endpoints.
package conns

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/grpctarget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A Conn is what a user says of a connection for hedges.
type Conn struct {
	Conn *grpc.ClientConn
	Cost int
}

// A Set is connections for hedges, in order of preference: the first one is endpoint 1. Endpoint 0 is the connection that the caller of a call has
// chosen. It does not change. A nil Set has none: hedges go over the caller's. It is safe for concurrent use.
type Set struct {
	all     []*conn
	targets targets
}

type conn struct {
	*grpc.ClientConn
	target string // its name
	waker  Waker
	cost   int
}

// New returns the Set of those that were given for calls to their own targets and to others, or an error that names what is wrong with
// which of them.
func New(others []string, given []Conn) (*Set, error) {
	if n := len(given); n < 1 || n >= endpoint.Max {
		return nil, fmt.Errorf("%d connections: there must be 1 to %d", n, endpoint.Max-1)
	}
	c := &Set{targets: targets{given: slices.Clone(others)}}
	for i, g := range given {
		earlier := slices.IndexFunc(given[:i], func(other Conn) bool { return other.Conn == g.Conn })
		switch {
		case g.Conn == nil:
			return nil, fmt.Errorf("connection %d: Conn is nil", i+1)
		case earlier >= 0:
			return nil, fmt.Errorf("connection %d: Conn, to %q, is that of connection %d as well", i+1, grpctarget.Of(g.Conn), earlier+1)
		case g.Cost < 0 || g.Cost > endpoint.MaxCost:
			return nil, fmt.Errorf("connection %d: Cost %d is not in [0, %d]", i+1, g.Cost, endpoint.MaxCost)
		}
		to := &conn{ClientConn: g.Conn, target: grpctarget.Of(g.Conn), cost: max(g.Cost, 1)}
		c.all, c.targets.names = append(c.all, to), append(c.targets.names, to.target)
	}
	return c, nil
}

// Serve reports whether calls over own may have hedges.
func (c *Set) Serve(own *grpc.ClientConn) bool { return c == nil || c.targets.has(own) }

// Dearest returns the largest cost of a hedge.
func (c *Set) Dearest() (cost int) {
	for _, to := range c.all {
		cost = max(cost, to.cost)
	}
	return cost
}

// names returns the names of the endpoints of calls to own: the targets, of which those that come again have the number of the endpoint behind them.
func (c *Set) names(own string) []string {
	names := []string{own}
	for i, to := range c.all {
		name := to.target
		if slices.Contains(names, name) {
			name += " #" + strconv.Itoa(i+1)
		}
		names = append(names, name)
	}
	return names
}

// Connect connects all that are idle, and waits for none.
func (c *Set) Connect() {
	if c != nil {
		c.ready()
	}
}

// ready returns the endpoints over which a hedge would start at once. It connects the connections that are idle.
func (c *Set) ready() (ready endpoint.Mask) {
	for i, to := range c.all {
		if to.waker.Ready(to.ClientConn) {
			ready |= 1 << (i + 1)
		}
	}
	return ready
}

// A Tour is which connections the attempts of a call go over. The zero Tour is that of a call without a Set, whose hedges go over the caller's own
// connection. The goroutine of the call begins it. Hedges are added one at a time, before they start, and each asks about itself.
type Tour struct {
	endpoint.Tour
	set *Set
	key *policy.Key
	own *grpc.ClientConn // the caller's
	to  string           // the name of its target
}

// Begin makes t, which is zero, the tour of a call over own, which has the key.
func (t *Tour) Begin(c *Set, own *grpc.ClientConn, k *policy.Key) {
	if c != nil {
		t.begin(c, own, k)
	}
}

func (t *Tour) begin(c *Set, own *grpc.ClientConn, k *policy.Key) {
	t.set, t.key, t.own, t.to = c, k, own, grpctarget.Of(own)
	var at endpoint.Mask
	for i, to := range c.all {
		if to.ClientConn == own {
			at |= 1 << (i + 1)
		}
	}
	health, ok := k.Extension.Load().(*endpoint.Health)
	if !ok {
		health = endpoint.HealthOf(k, c.names(t.to))
	}
	t.Tour.Begin(health, at)
	if cost := int32(t.Usual().Cost); k.TypicalCost.Load() != cost {
		k.TypicalCost.Store(cost)
	}
}

// Forget makes t zero.
func (t *Tour) Forget() {
	if t.set != nil {
		*t = Tour{}
	}
}

// A Due is a hedge that is due.
type Due struct {
	Denial observe.Reason // why it is not sent; None: nothing is known yet
	Held   bool           // the call's target holds back hedges to it
}

// Admit decides about the next hedge of call c, and where it goes.
func (t *Tour) Admit(c *policy.Call, index int, due Due) bool {
	endpoint, denial := 0, due.Denial
	if t.set != nil && denial == policy.None {
		if endpoint = t.Next(t.set.ready()); endpoint == 0 {
			denial = observe.DeniedNotReady
		}
	}
	request := t.request(endpoint)
	if denial == policy.None && due.Held && !request.OtherBackend {
		denial = observe.DeniedPaused
	}
	if !c.AdmitRequest(index, request, denial) {
		return false
	}
	if endpoint > 0 {
		t.add(c.Hedges, endpoint, request.OtherBackend)
	}
	return true
}

// add says where attempt n goes.
func (t *Tour) add(n, endpoint int, elsewhere bool) {
	added := false
	defer t.key.EndedUnless(&added)
	t.Add(n, endpoint, elsewhere)
	added = true
}

// Refuse says that hedge n of call c was not sent: ctx is the context of the hedge, which may be refused after its call.
func (t *Tour) Refuse(ctx context.Context, c *policy.Call, n int, reason observe.Reason) {
	endpoint := t.Endpoint(n)
	c.Withdraw(ctx, reason, t.request(endpoint))
	if endpoint > 0 {
		t.Refused(n)
	}
}

// instant is how long before the caller's deadline a server can have said that it has passed.
const instant = time.Millisecond

// Ended learns how attempt n, which has the context, ended: with an answer, or refused by its server, or neither. That it was cancelled, or had no time
// left, is not the fault of its connection.
func (t *Tour) Ended(ctx context.Context, n int, answered, refused bool) {
	if t.set == nil {
		return
	}
	deadline, ok := ctx.Deadline()
	t.Tour.Ended(n, answered, refused || ctx.Err() != nil || ok && time.Until(deadline) < instant)
}

// Usual returns the request of the first hedge while every connection is ready and none fails.
func (t *Tour) Usual() policy.HedgeRequest {
	switch {
	case t.set == nil:
		return policy.HedgeRequest{}
	case len(t.set.all) > 1 && t.set.all[0].ClientConn == t.own:
		return t.request(2)
	}
	return t.request(1)
}

// request returns the request of a hedge to an endpoint. A hedge to another target than the call's goes to another backend.
func (t *Tour) request(endpoint int) policy.HedgeRequest {
	if endpoint == 0 {
		return policy.HedgeRequest{}
	}
	to := t.set.all[endpoint-1]
	return policy.HedgeRequest{Cost: to.cost, OtherBackend: to.target != t.to}
}

// Closed reports whether the program has closed the connection of hedge n, which is why it has failed.
func (t *Tour) Closed(n int) bool {
	endpoint := t.Endpoint(n)
	return endpoint > 0 && t.set.all[endpoint-1].GetState() == connectivity.Shutdown
}

// Over returns the connection of hedge n of a call over own.
func (t *Tour) Over(n int, own *grpc.ClientConn) *grpc.ClientConn {
	if endpoint := t.Endpoint(n); endpoint > 0 {
		return t.set.all[endpoint-1].ClientConn
	}
	return own
}

// A Waker connects a connection that is idle. It does not wait for it: Connect returns when the resolver is built, which may ask others. It
// wakes one at a time; the next hedge that is due asks again. The zero Waker is ready. It is safe for concurrent use.
type Waker struct{ busy atomic.Bool }

// Ready reports whether a hedge over cc would start at once. It wakes a cc that is idle: otherwise only a call would, and none is sent.
func (w *Waker) Ready(cc *grpc.ClientConn) bool {
	state := cc.GetState()
	if state == connectivity.Idle && w.busy.CompareAndSwap(false, true) {
		go func() {
			defer w.busy.Store(false)
			cc.Connect()
		}()
	}
	return state == connectivity.Ready
}

// targets are the targets whose calls may have hedges over connections of their own.
type targets struct {
	names []string // of the connections for hedges
	given []string // by the program: names, or spellings
}

// has reports whether cc has one of the targets. A nil cc, as in tests, has the target "".
func (t *targets) has(cc *grpc.ClientConn) bool {
	name := grpctarget.Of(cc)
	return slices.Contains(t.names, name) || slices.Contains(t.given, name) || cc != nil && slices.Contains(t.given, cc.Target())
}
