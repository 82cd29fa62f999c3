// Package conns selects the connection of each hedge of a gRPC call, among the connections that the program configures for hedges. The
// connection must be ready, and not ejected by package endpoint.
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
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Config describes one connection for hedges, as the program gives it.
type Config struct {
	Conn *grpc.ClientConn
	Cost int // in tokens; 0: one
}

// A Set is the connections for hedges of a client, in order of preference. It does not change. A nil Set has none: hedges use the connection of
// the caller. It is safe for concurrent use.
//
// For package endpoint, the connection of the caller is endpoint 0, and the first connection of the Set is endpoint 1.
type Set struct {
	conns   []*conn
	targets targets
}

// A conn is a valid Config.
type conn struct {
	*grpc.ClientConn
	endpoint  int // index of the endpoint; 1 is the first connection of the Set
	target    string
	connector IdleConnector
	cost      int // in tokens
}

// NewSet returns the Set of the connections. The error names the first invalid connection and the reason. Calls to the targets of the
// connections, and to the targets in others, may have hedges.
func NewSet(others []string, given []Config) (*Set, error) {
	if n := len(given); n < 1 || n >= endpoint.MaxEndpoints {
		return nil, fmt.Errorf("%d connections: there must be 1 to %d", n, endpoint.MaxEndpoints-1)
	}
	s := &Set{targets: targets{namedTargets: slices.Clone(others)}}
	for i, g := range given {
		earlier := slices.IndexFunc(given[:i], func(other Config) bool { return other.Conn == g.Conn })
		switch {
		case g.Conn == nil:
			return nil, fmt.Errorf("connection %d: Conn is nil", i+1)
		case earlier >= 0:
			return nil, fmt.Errorf("connection %d: Conn, to %q, is that of connection %d as well", i+1, grpctarget.Of(g.Conn), earlier+1)
		case g.Cost < 0 || g.Cost > endpoint.MaxCost:
			return nil, fmt.Errorf("connection %d: Cost %d is not in [0, %d]", i+1, g.Cost, endpoint.MaxCost)
		}
		c := &conn{ClientConn: g.Conn, endpoint: i + 1, target: grpctarget.Of(g.Conn), cost: max(g.Cost, 1)}
		s.conns, s.targets.connTargets = append(s.conns, c), append(s.targets.connTargets, c.target)
	}
	return s, nil
}

// AllowsHedges reports whether calls over the connection own may have hedges.
func (s *Set) AllowsHedges(own *grpc.ClientConn) bool { return s == nil || s.targets.containsConn(own) }

// MaxCost returns the largest cost of a hedge, in tokens.
func (s *Set) MaxCost() (cost int) {
	for _, c := range s.conns {
		cost = max(cost, c.cost)
	}
	return cost
}

// endpointNames returns the names of the endpoints of calls to the target own: the targets. A target that occurs again gets its index appended.
func (s *Set) endpointNames(own string) []string {
	names := []string{own}
	for i, c := range s.conns {
		name := c.target
		if slices.Contains(names, name) {
			name += " #" + strconv.Itoa(i+1)
		}
		names = append(names, name)
	}
	return names
}

// Connect starts to connect all idle connections. It does not wait.
func (s *Set) Connect() {
	if s != nil {
		s.connectIdle()
	}
}

// connectIdle starts to connect the idle connections. It returns the endpoints whose connections are ready.
func (s *Set) connectIdle() (ready endpoint.Mask) {
	for i, c := range s.conns {
		if c.connector.IsReady(c.ClientConn) {
			ready = ready.With(i + 1)
		}
	}
	return ready
}

// A Selection selects the connection of each attempt of one gRPC call. The zero Selection is that of a call without a Set, whose hedges use the
// connection of the caller. The goroutine of the call initializes it. Hedges are admitted one at a time, before they start.
type Selection struct {
	rotation endpoint.Rotation
	set      *Set
	own      *grpc.ClientConn // the caller's
	attempts [1 + race.MaxHedges]Attempt
}

// An Attempt is the connection that one attempt of a call uses. It is selected before the attempt starts, and stays. The zero Attempt uses the
// connection of the caller.
type Attempt struct {
	conn          *conn // nil: the caller's
	isOtherTarget bool  // another one than that of the call
}

// Init makes s, which is zero, the Selection of a call over own, whose key is k.
func (s *Selection) Init(set *Set, own *grpc.ClientConn, k *policy.Key) {
	if set != nil {
		s.initialize(set, own, k)
	}
}

func (s *Selection) initialize(set *Set, own *grpc.ClientConn, k *policy.Key) {
	s.set, s.own = set, own
	var used endpoint.Mask
	for i, c := range set.conns {
		if c.ClientConn == own {
			used = used.With(i + 1)
		}
	}
	detector, ok := k.Extension.Load().(*endpoint.Detector)
	if !ok {
		detector = endpoint.LoadDetector(k, set.endpointNames(grpctarget.Of(own)))
	}
	s.rotation.Init(detector, used)
	if cost := int32(s.TypicalRequest().Cost); k.TypicalCost.Load() != cost {
		k.TypicalCost.Store(cost)
	}
}

// Clear makes s zero.
func (s *Selection) Clear() {
	if s.set != nil {
		*s = Selection{}
	}
}

// A DueHedge describes a hedge that is due.
type DueHedge struct {
	Denial       observe.Reason // why it must not be sent; None: no reason is known yet
	TargetPaused bool           // the target of the call accepts no hedges of the call
}

// Admit selects the connection of the next hedge of call c, and reports whether the hedge is admitted. The index is that of the hedge in the schedule
// of the call, from 0. The argument due holds the reason for a denial that the caller knows already, and whether the target of the call is paused. With
// that reason, no connection is selected. If the hedge is denied later, the selected connection is not used. The call counts each denial.
func (s *Selection) Admit(c *policy.Call, index int, due DueHedge) bool {
	selected, denial := Attempt{}, due.Denial
	if s.set != nil && denial == policy.None {
		if selected = s.attemptForEndpoint(s.rotation.SelectHedge(s.set.connectIdle())); selected.conn == nil {
			denial = observe.DeniedNotReady
		}
	}
	request := selected.hedgeRequest()
	if denial == policy.None && due.TargetPaused && !request.OtherBackend {
		denial = observe.DeniedPaused
	}
	if !c.AdmitRequest(index, request, denial) {
		return false
	}
	if selected.conn != nil {
		s.attempts[c.Hedges] = selected
		s.addHedge(c.Key, selected.endpointIndex())
	}
	return true
}

// addHedge records that a hedge of a call of key k was admitted. If an observer ends the goroutine, the hedge is not in flight any more.
func (s *Selection) addHedge(k *policy.Key, i int) {
	added := false
	defer k.HedgeEndedUnless(&added)
	s.rotation.AddHedge(i)
	added = true
}

// attemptForEndpoint returns the Attempt that uses endpoint i.
func (s *Selection) attemptForEndpoint(i int) Attempt {
	if i == 0 {
		return Attempt{}
	}
	c := s.set.conns[i-1]
	return Attempt{conn: c, isOtherTarget: c.target != grpctarget.Of(s.own)}
}

// endpointIndex returns the index of the endpoint that a uses.
func (a Attempt) endpointIndex() int {
	if a.conn == nil {
		return 0
	}
	return a.conn.endpoint
}

// hedgeRequest returns the request for admission of a hedge. Another target has other backends.
func (a Attempt) hedgeRequest() policy.HedgeRequest {
	if a.conn == nil {
		return policy.HedgeRequest{}
	}
	return policy.HedgeRequest{Cost: a.conn.cost, OtherBackend: a.isOtherTarget}
}

// TypicalRequest returns the request of the first hedge while every connection is ready and none is ejected.
func (s *Selection) TypicalRequest() policy.HedgeRequest {
	switch {
	case s.set == nil:
		return policy.HedgeRequest{}
	case len(s.set.conns) > 1 && s.set.conns[0].ClientConn == s.own:
		return s.attemptForEndpoint(2).hedgeRequest()
	}
	return s.attemptForEndpoint(1).hedgeRequest()
}

// Attempt returns the connection of attempt n.
func (s *Selection) Attempt(n int) *Attempt { return &s.attempts[n] }

// Conn returns the connection that a uses, where own is the caller's.
func (a *Attempt) Conn(own *grpc.ClientConn) *grpc.ClientConn {
	if a.conn != nil {
		return a.conn.ClientConn
	}
	return own
}

// IsOtherTarget reports whether a has another target than the primary of its call.
func (a *Attempt) IsOtherTarget() bool { return a.isOtherTarget }

// IsClosed reports whether the program has closed the connection, which explains why the attempt failed.
func (a *Attempt) IsClosed() bool {
	return a.conn != nil && a.conn.GetState() == connectivity.Shutdown
}

// Exclude keeps further hedges of the call from the connection of a, whose server has pushed back.
func (s *Selection) Exclude(a *Attempt) { s.rotation.Exclude(a.endpointIndex()) }

// Withdraw records that the hedge a of call c was admitted and not sent, for a reason. ctx is the context of the hedge, which may end after the call.
func (s *Selection) Withdraw(ctx context.Context, c *policy.Call, a *Attempt, reason observe.Reason) {
	c.Withdraw(ctx, reason, a.hedgeRequest())
	if a.conn != nil {
		s.rotation.WithdrawHedge(a.conn.endpoint)
	}
}

// deadlineMargin is the time before the caller's deadline in which its server may already report that the deadline has passed.
const deadlineMargin = time.Millisecond

// RecordResult records how attempt n, whose context is ctx, ended: answered, refused by its server, or neither. A connection is not
// responsible for an attempt that was cancelled or had no time left.
func (s *Selection) RecordResult(ctx context.Context, n int, answered, refused bool) {
	if s.set == nil {
		return
	}
	deadline, ok := ctx.Deadline()
	s.rotation.RecordResult(n, s.attempts[n].endpointIndex(), answered, refused || ctx.Err() != nil || ok && time.Until(deadline) < deadlineMargin)
}

// A IdleConnector connects an idle connection in the background: Connect returns when the resolver is built, which may take long. It runs one Connect
// at a time. The zero Waker is ready to use. It is safe for concurrent use.
type IdleConnector struct{ busy atomic.Bool }

// IsReady reports whether cc is ready. If cc is idle, it starts to connect cc: gRPC connects an idle connection only for a call, and no hedge
// is sent before cc is ready.
func (w *IdleConnector) IsReady(cc *grpc.ClientConn) bool {
	state := cc.GetState()
	if state == connectivity.Idle && w.busy.CompareAndSwap(false, true) {
		go func() {
			defer w.busy.Store(false)
			cc.Connect()
		}()
	}
	return state == connectivity.Ready
}

// targets are the targets whose calls may have hedges over the connections of a Set.
type targets struct {
	connTargets  []string // of the connections
	namedTargets []string // by the program: names, or targets as they were dialed
}

// containsConn reports whether the target of cc is among them. A nil cc, as in tests, has the target "".
func (t *targets) containsConn(cc *grpc.ClientConn) bool {
	name := grpctarget.Of(cc)
	return slices.Contains(t.connTargets, name) || slices.Contains(t.namedTargets, name) || cc != nil && slices.Contains(t.namedTargets, cc.Target())
}
