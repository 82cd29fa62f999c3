// Package conns selects the connection of each hedge of a gRPC call. It selects among the connections that the program
// configures for hedges. A selected connection is ready, and package endpoint has not ejected it.
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

// A Config describes one connection that hedges may use, with the values that the program has set.
type Config struct {
	Conn *grpc.ClientConn
	Cost int // the price of a hedge in tokens; 0 means 1
}

// A Set holds the connections of a client for hedges, in order of preference. It is immutable, so it is safe for
// concurrent use. With a nil Set, hedges use the caller's connection.
//
// Package endpoint identifies connections by index: 0 is the caller's connection, and 1 is the first connection of the
// Set.
type Set struct {
	conns   []*conn
	targets targets
}

// A conn is a validated [Config].
type conn struct {
	*grpc.ClientConn
	endpoint int // index in package endpoint; the first connection of the Set has 1
	// name by package grpctarget
	target    string
	connector IdleConnector
	cost      int // in tokens
}

// NewSet validates the connections and returns their Set. The error names the first invalid connection and the reason.
// Calls to the targets of the connections, and to the targets named in others, may have hedges.
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
			return nil, fmt.Errorf("connection %d: Conn, to %q, is that of connection %d as well", i+1, grpctarget.Name(g.Conn), earlier+1)
		case g.Cost < 0 || g.Cost > endpoint.MaxCost:
			return nil, fmt.Errorf("connection %d: Cost %d is not in [0, %d]", i+1, g.Cost, endpoint.MaxCost)
		}
		c := &conn{ClientConn: g.Conn, endpoint: i + 1, target: grpctarget.Name(g.Conn), cost: max(g.Cost, 1)}
		s.conns, s.targets.connTargets = append(s.conns, c), append(s.targets.connTargets, c.target)
	}
	return s, nil
}

// AllowsHedges reports whether calls over the caller's connection own may have hedges. It is true for a nil Set.
func (s *Set) AllowsHedges(own *grpc.ClientConn) bool { return s == nil || s.targets.containsConn(own) }

// MaxCost returns the largest cost of a hedge, in tokens.
func (s *Set) MaxCost() (cost int) {
	for _, c := range s.conns {
		cost = max(cost, c.cost)
	}
	return cost
}

// endpointNames returns the names of the endpoints of a call to the target own, in the order of their indexes. A name
// is the target of the connection. If a target occurs twice, the second name also has the index, such as "dns:///b #2".
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

// Connect starts to connect all idle connections in the background. It does nothing for a nil Set.
func (s *Set) Connect() {
	if s != nil {
		s.connectIdle()
	}
}

// connectIdle starts to connect idle connections in the background. It returns the endpoints whose connections are
// ready.
func (s *Set) connectIdle() (ready endpoint.Mask) {
	for i, c := range s.conns {
		if c.connector.IsReady(c.ClientConn) {
			ready = ready.With(i + 1)
		}
	}
	return ready
}

// A Selection selects and stores the connection of each attempt of one gRPC call. With the zero Selection, all attempts
// use the caller's connection. The goroutine of the call initializes it. Hedges are admitted one at a time, each before
// it starts.
type Selection struct {
	rotation endpoint.Rotation
	set      *Set
	own      *grpc.ClientConn // the caller's connection
	// by number of the attempt; 0 is the primary
	attempts [1 + race.MaxHedges]Attempt
}

// An Attempt holds the connection of one attempt of a call. It does not change after the attempt starts. The zero
// Attempt uses the caller's connection.
type Attempt struct {
	conn          *conn // nil for the caller's connection
	isOtherTarget bool  // whether conn has another target than the call
}

// Init initializes s, which is zero, for a call over the connection own whose latency key is k. For a nil set, s stays
// zero.
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
		detector = endpoint.LoadDetector(k, set.endpointNames(grpctarget.Name(own)))
	}
	s.rotation.Init(detector, used)
	if cost := int32(s.TypicalRequest().Cost); k.TypicalCost.Load() != cost {
		k.TypicalCost.Store(cost)
	}
}

// Clear resets s to the zero Selection.
func (s *Selection) Clear() {
	if s.set != nil {
		*s = Selection{}
	}
}

// A DueHedge describes a hedge whose delay has passed, as input of [Selection.Admit].
type DueHedge struct {
	Denial       observe.Reason // reason known to the caller for which the hedge must not start; None if there is no such reason
	TargetPaused bool           // whether the target of the call accepts no hedges for now
}

// Admit selects the connection of the next hedge of call c, and reports whether the hedge is admitted. The index is the
// position of the hedge in the schedule, from 0. If due has a reason for denial, no connection is selected. Admit
// counts a denial in c. After a denial, the selected connection stays available to later hedges.
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

// addHedge records that a hedge to endpoint i was admitted, for a call with the latency key k. If an observer ends the
// goroutine by [runtime.Goexit] or a panic, k no longer counts the hedge as in flight.
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
	return Attempt{conn: c, isOtherTarget: c.target != grpctarget.Name(s.own)}
}

// endpointIndex returns the index of the endpoint that a uses.
func (a Attempt) endpointIndex() int {
	if a.conn == nil {
		return 0
	}
	return a.conn.endpoint
}

// hedgeRequest returns the admission request of a hedge over the connection of a. A connection to another target counts
// as another backend.
func (a Attempt) hedgeRequest() policy.HedgeRequest {
	if a.conn == nil {
		return policy.HedgeRequest{}
	}
	return policy.HedgeRequest{Cost: a.conn.cost, OtherBackend: a.isOtherTarget}
}

// TypicalRequest returns the admission request of the first hedge of a call while every connection is ready and no
// endpoint is ejected.
func (s *Selection) TypicalRequest() policy.HedgeRequest {
	switch {
	case s.set == nil:
		return policy.HedgeRequest{}
	case len(s.set.conns) > 1 && s.set.conns[0].ClientConn == s.own:
		return s.attemptForEndpoint(2).hedgeRequest()
	}
	return s.attemptForEndpoint(1).hedgeRequest()
}

// Attempt returns the Attempt with the number n; 0 is the primary.
func (s *Selection) Attempt(n int) *Attempt { return &s.attempts[n] }

// Conn returns the connection of a. The argument own is the caller's connection, which a uses if no other connection
// was selected.
func (a *Attempt) Conn(own *grpc.ClientConn) *grpc.ClientConn {
	if a.conn != nil {
		return a.conn.ClientConn
	}
	return own
}

// IsOtherTarget reports whether the target of a differs from the target of the primary.
func (a *Attempt) IsOtherTarget() bool { return a.isOtherTarget }

// IsClosed reports whether the program has closed the connection of a. It is false for the caller's connection.
func (a *Attempt) IsClosed() bool {
	return a.conn != nil && a.conn.GetState() == connectivity.Shutdown
}

// Exclude prevents further hedges of the call over the connection of a, whose server has pushed back.
func (s *Selection) Exclude(a *Attempt) { s.rotation.Exclude(a.endpointIndex()) }

// Withdraw records that the admitted hedge a of call c was not sent, and the reason. The argument ctx is the context of
// the hedge, which may end after the call.
func (s *Selection) Withdraw(ctx context.Context, c *policy.Call, a *Attempt, reason observe.Reason) {
	c.Withdraw(ctx, reason, a.hedgeRequest())
	if a.conn != nil {
		s.rotation.WithdrawHedge(a.conn.endpoint)
	}
}

// deadlineMargin is the tolerance of clocks: a server may report that a deadline has passed this long before the
// client's deadline passes.
const deadlineMargin = time.Millisecond

// RecordResult records the result of attempt n for the health of its connection: answered, refused by the server, or
// failed if both are false. A failure does not count if ctx, the context of the attempt, has ended or is about to reach
// its deadline.
func (s *Selection) RecordResult(ctx context.Context, n int, answered, refused bool) {
	if s.set == nil {
		return
	}
	deadline, ok := ctx.Deadline()
	s.rotation.RecordResult(n, s.attempts[n].endpointIndex(), answered, refused || ctx.Err() != nil || ok && time.Until(deadline) < deadlineMargin)
}

// An IdleConnector connects an idle connection in the background, because Connect blocks until the resolver is built.
// It runs at most one Connect at a time. The zero value is ready to use. It is safe for concurrent use.
type IdleConnector struct{ busy atomic.Bool }

// IsReady reports whether cc is ready. If cc is idle, IsReady also starts to connect cc. Without that, cc would stay
// idle: gRPC connects an idle connection only for a call, and hedges use only ready connections.
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

// A targets value holds the targets whose calls may have hedges over the connections of a Set.
type targets struct {
	connTargets  []string // the targets of the connections in the Set
	namedTargets []string // targets that the program names, in the form of package grpctarget or as dialed
}

// containsConn reports whether the target of cc is in t. A nil cc, as in tests, has the target "".
func (t *targets) containsConn(cc *grpc.ClientConn) bool {
	name := grpctarget.Name(cc)
	return slices.Contains(t.connTargets, name) || slices.Contains(t.namedTargets, name) || cc != nil && slices.Contains(t.namedTargets, cc.Target())
}
