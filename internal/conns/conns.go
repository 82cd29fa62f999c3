// Package conns selects the connection of each hedge of a gRPC call. It selects among the connections that the program
// configures for hedges. A hedge uses a connection that is ready and that package endpoint has not ejected.
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
	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Config holds the settings of one connection that hedges may use, as the user gave them. [NewSet] validates the
// settings.
type Config struct {
	Conn *grpc.ClientConn // must not be nil
	Cost int              // cost of a hedge over the connection, in tokens of the hedge budget; 0 means 1
}

// A Set holds the connections that the hedges of a client may use, in order of preference. It is immutable, so it is
// safe for concurrent use. A nil Set means that hedges use the caller's connection.
//
// Package endpoint identifies connections by index. Index 0 is the caller's connection, and index 1 is the first
// connection of the Set.
type Set struct {
	conns   []*conn
	targets hedgeTargets // targets of the calls that may have hedges
}

// A conn is a connection for hedges: a validated [Config] with data that is computed once.
type conn struct {
	*grpc.ClientConn
	endpointIndex int // index in package endpoint; 1 for the first connection of the Set
	// name of the target, as package grpctarget returns it
	target    string
	connector IdleConnector
	cost      int // cost of a hedge, in tokens of the hedge budget; at least 1
}

// NewSet returns the Set of the connections in configs, which receive hedges. Only calls to the targets of these
// connections and to otherTargets may have hedges. If a setting is invalid, NewSet returns an error that names the
// connection and the reason.
func NewSet(otherTargets []string, configs []Config) (*Set, error) {
	if n := len(configs); n < 1 || n >= endpoint.MaxEndpoints {
		return nil, fmt.Errorf("%d connections: there must be 1 to %d", n, endpoint.MaxEndpoints-1)
	}
	s := &Set{targets: hedgeTargets{namedTargets: slices.Clone(otherTargets)}}
	for i, g := range configs {
		earlier := slices.IndexFunc(configs[:i], func(other Config) bool { return other.Conn == g.Conn })
		switch {
		case g.Conn == nil:
			return nil, fmt.Errorf("connection %d: Conn is nil", i+1)
		case earlier >= 0:
			return nil, fmt.Errorf("connection %d: Conn, to %q, is that of connection %d as well", i+1, grpctarget.Name(g.Conn), earlier+1)
		case g.Cost < 0 || g.Cost > endpoint.MaxCost:
			return nil, fmt.Errorf("connection %d: Cost %d is not in [0, %d]", i+1, g.Cost, endpoint.MaxCost)
		}
		c := &conn{ClientConn: g.Conn, endpointIndex: i + 1, target: grpctarget.Name(g.Conn), cost: max(g.Cost, 1)}
		s.conns, s.targets.connTargets = append(s.conns, c), append(s.targets.connTargets, c.target)
	}
	return s, nil
}

// AllowsHedges reports whether a call that the caller makes over cc may have hedges. It returns true for a nil Set,
// because hedges then use cc as well.
func (s *Set) AllowsHedges(cc *grpc.ClientConn) bool { return s == nil || s.targets.containsConn(cc) }

// MaxCost returns the largest cost of a hedge among the connections of s, in tokens of the hedge budget.
func (s *Set) MaxCost() (cost int) {
	for _, c := range s.conns {
		cost = max(cost, c.cost)
	}
	return cost
}

// endpointNames returns the names of the endpoints of a call to the given target, by the index of the endpoint. The
// name of an endpoint is the target of its connection. If a target occurs twice, the second name also contains the
// number of the connection, such as "dns:///b #2".
func (s *Set) endpointNames(target string) []string {
	names := []string{target}
	for i, c := range s.conns {
		name := c.target
		if slices.Contains(names, name) {
			name += " #" + strconv.Itoa(i+1)
		}
		names = append(names, name)
	}
	return names
}

// Connect starts to connect all idle connections of s in the background. It does nothing for a nil Set.
func (s *Set) Connect() {
	if s != nil {
		s.connectIdle()
	}
}

// connectIdle starts to connect the idle connections of s in the background. It returns the set of connections that are
// ready.
func (s *Set) connectIdle() (ready endpoint.Mask) {
	for i, c := range s.conns {
		if c.connector.IsReady(c.ClientConn) {
			ready = ready.With(i + 1)
		}
	}
	return ready
}

// A Selection selects and stores the connection of each attempt of one gRPC call. In the zero Selection, all attempts
// use the caller's connection.
//
// Only the goroutine that runs the call may initialize it. Hedges must be admitted one at a time, each before it
// starts.
type Selection struct {
	rotation   endpoint.Rotation
	set        *Set
	callerConn *grpc.ClientConn // the caller's connection
	// by number of the attempt; 0 is the primary
	attempts [1 + race.MaxHedges]Attempt
}

// An Attempt holds the connection of one attempt of a gRPC call. It does not change after the attempt starts. The zero
// Attempt uses the caller's connection.
type Attempt struct {
	conn           *conn // nil for the caller's connection
	hasOtherTarget bool  // the target of conn differs from the target of the call
}

// Init prepares a zero Selection for a call over the connection own with latency key k. If set is nil, s stays zero,
// and all attempts use own.
func (s *Selection) Init(set *Set, own *grpc.ClientConn, k *policy.Key) {
	if set != nil {
		s.initialize(set, own, k)
	}
}

// initialize does the work of Init. The set must not be nil.
func (s *Selection) initialize(set *Set, own *grpc.ClientConn, k *policy.Key) {
	s.set, s.callerConn = set, own
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

// Clear resets s to the zero Selection, so that it can be reused for another call.
func (s *Selection) Clear() {
	if s.set != nil {
		*s = Selection{}
	}
}

// A DueHedge describes a hedge whose hedge delay has passed, as input of [Selection.Admit].
type DueHedge struct {
	Denial       observe.Reason // reason known to the caller why the hedge must not start; None if there is no such reason
	TargetPaused bool           // the target of the call accepts no hedges for now, so only a hedge to another target may start
	// IsTooLate reports whether a hedge that takes the given time would end after the deadline of the call. Admit calls it for a
	// hedge that starts because an attempt has failed. The argument is 0 if the latency of the connection is not known.
	IsTooLate func(latency time.Duration) bool
}

// Admit selects the connection of the next hedge of call c. It returns true if the hedge is admitted, and false if it
// is denied. Admit counts a denial in c.
//
// The argument index is the position of the hedge in the hedge schedule, from 0, or [race.AfterFailure]. If due contains
// a reason for denial, no connection is selected. The connection that was selected for a denied hedge stays available to
// later hedges.
//
// A hedge that starts because an attempt has failed needs a connection that the call has not used. If there is none, Admit
// returns false and counts no denial.
func (s *Selection) Admit(c *policy.Call, index int, due DueHedge) bool {
	selected, denial := Attempt{}, due.Denial
	if s.set != nil && denial == policy.None {
		if selected = s.attemptForConn(s.selectEndpoint(index, c.Hedges)); selected.conn == nil {
			if index == race.AfterFailure {
				return false
			}
			denial = observe.DeniedNotReady
		}
	}
	request := selected.hedgeRequest()
	if index == race.AfterFailure && selected.conn != nil {
		request.ExpectedLatency = s.rotation.ExpectedLatency(selected.endpointIndex())
		if due.IsTooLate(request.ExpectedLatency) {
			denial = observe.DeniedDeadline
		}
	}
	if denial == policy.None && due.TargetPaused && !request.OtherBackend {
		denial = observe.DeniedPaused
	}
	if !c.AdmitRequest(index, request, denial) {
		return false
	}
	if selected.conn != nil {
		s.attempts[c.Hedges] = selected
		c.MarkHedgeStart()
		s.addHedge(c.Key, selected.endpointIndex())
	}
	return true
}

// selectEndpoint returns the index of the connection for a hedge of a call that has sent the given number of hedges. It is 0
// if no connection is available. The argument index is that of Admit.
func (s *Selection) selectEndpoint(index, hedges int) int {
	ready := s.set.connectIdle()
	if index != race.AfterFailure {
		return s.rotation.SelectHedge(ready)
	}
	for _, c := range s.set.conns {
		isUsed := func(a Attempt) bool { return a.conn == c }
		if c.ClientConn == s.callerConn || slices.ContainsFunc(s.attempts[1:1+hedges], isUsed) {
			ready &^= endpoint.Mask(0).With(c.endpointIndex)
		}
	}
	return s.rotation.SelectFailover(ready)
}

// FailoverTimeout returns how long hedge n, which a failure has started, may run after the primary has failed. The argument usual
// is the usual latency of the call.
func (s *Selection) FailoverTimeout(n int, usual time.Duration) time.Duration {
	return s.rotation.FailoverTimeout(s.attempts[n].endpointIndex(), usual)
}

// addHedge reports to the outlier detector that a hedge to endpoint i was admitted, for a call with latency key k. This
// may call an observer. If the observer panics or calls [runtime.Goexit], the hedge is not sent, and addHedge removes
// it from the hedges in flight of k.
func (s *Selection) addHedge(k *policy.Key, i int) {
	added := false
	defer k.HedgeEndedUnless(&added)
	s.rotation.AddHedge(i)
	added = true
}

// attemptForConn returns an Attempt that uses the connection with index i, where 0 is the caller's connection.
func (s *Selection) attemptForConn(i int) Attempt {
	if i == 0 {
		return Attempt{}
	}
	c := s.set.conns[i-1]
	return Attempt{conn: c, hasOtherTarget: c.target != grpctarget.Name(s.callerConn)}
}

// endpointIndex returns the index, in package endpoint, of the connection that a uses. It is 0 for the caller's
// connection.
func (a Attempt) endpointIndex() int {
	if a.conn == nil {
		return 0
	}
	return a.conn.endpointIndex
}

// hedgeRequest returns the request by which a hedge over the connection of a asks the policy for admission. It states
// the cost of the hedge, and whether the connection has another target than the call.
func (a Attempt) hedgeRequest() policy.HedgeRequest {
	if a.conn == nil {
		return policy.HedgeRequest{}
	}
	return policy.HedgeRequest{Cost: a.conn.cost, OtherBackend: a.hasOtherTarget}
}

// TypicalRequest returns the admission request that a hedge is expected to make before its connection is selected. It
// is that of the first hedge of a call while all connections are ready and no endpoint is ejected.
func (s *Selection) TypicalRequest() policy.HedgeRequest {
	switch {
	case s.set == nil:
		return policy.HedgeRequest{}
	case len(s.set.conns) > 1 && s.set.conns[0].ClientConn == s.callerConn:
		return s.attemptForConn(2).hedgeRequest()
	}
	return s.attemptForConn(1).hedgeRequest()
}

// Attempt returns the stored Attempt with number n; 0 is the primary.
func (s *Selection) Attempt(n int) *Attempt { return &s.attempts[n] }

// Conn returns the connection that attempt a uses. The caller must pass the connection of the call, which is the result
// if no other connection was selected for a.
func (a *Attempt) Conn(callerConn *grpc.ClientConn) *grpc.ClientConn {
	if a.conn != nil {
		return a.conn.ClientConn
	}
	return callerConn
}

// HasOtherTarget reports whether the connection that a uses has another target than the caller's connection.
func (a *Attempt) HasOtherTarget() bool { return a.hasOtherTarget }

// IsClosed reports whether the connection selected for a has been closed by the program. It returns false if a uses the
// caller's connection.
func (a *Attempt) IsClosed() bool {
	return a.conn != nil && a.conn.GetState() == connectivity.Shutdown
}

// Exclude prevents further hedges of the call over the connection of a. It must be called after the server of that
// connection has pushed back.
func (s *Selection) Exclude(a *Attempt) { s.rotation.Exclude(a.endpointIndex()) }

// Withdraw records that hedge n of call c was admitted but not sent, and the reason. The argument ctx is the context of
// the hedge, which may end after the call.
func (s *Selection) Withdraw(ctx context.Context, c *policy.Call, n int, reason observe.Reason) {
	a := s.Attempt(n)
	c.Withdraw(ctx, n, reason, a.hedgeRequest())
	if a.conn != nil {
		s.rotation.WithdrawHedge(a.conn.endpointIndex)
	}
}

// RecordResult records the result of attempt n of call c for the health of its connection. The result is a success if
// answered is true, and otherwise a failure.
//
// A failure does not count if refused is true, because the server refused the attempt. It does not count either if ctx,
// the context of the attempt, has ended or is about to reach its deadline.
func (s *Selection) RecordResult(ctx context.Context, c *policy.Call, n int, answered, refused bool) {
	if s.set == nil {
		return
	}
	i, excused := s.attempts[n].endpointIndex(), refused || hedgebalancer.HasEnded(ctx)
	s.rotation.RecordResult(n, i, answered, excused)
	if n > 0 && (answered || excused) {
		s.rotation.RecordLatency(i, answered, c.IsAfterFailure(n), c.AttemptLatency(n))
	}
}

// An IdleConnector connects an idle gRPC connection in the background, because [grpc.ClientConn.Connect] blocks until
// the resolver is built. It runs at most one Connect at a time. The zero value is ready to use. It is safe for
// concurrent use.
type IdleConnector struct{ busy atomic.Bool }

// IsReady reports whether the state of cc is Ready. If cc is idle, IsReady also starts to connect it in the background.
// Without that, cc would stay idle: gRPC connects an idle connection only when a call uses it, and hedges use only
// ready connections.
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

// A hedgeTargets lists the targets whose calls may have hedges over the connections of a [Set].
type hedgeTargets struct {
	connTargets  []string // the targets of the connections in the Set
	namedTargets []string // further targets that the program names, as package grpctarget returns them or as the program dialed them
}

// containsConn reports whether t lists the target of cc. The target of a nil cc, which only tests use, is "".
func (t *hedgeTargets) containsConn(cc *grpc.ClientConn) bool {
	name := grpctarget.Name(cc)
	return slices.Contains(t.connTargets, name) || slices.Contains(t.namedTargets, name) || cc != nil && slices.Contains(t.namedTargets, cc.Target())
}
