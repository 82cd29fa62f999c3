package nameservers

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newTaskUntil returns a task like newTask with an AwaitUntil time.
func newTaskUntil(most time.Duration, servers ...netip.AddrPort) *Task {
	x := newTask(servers...)
	until := time.Now().Add(most)
	x.AwaitUntil = func() time.Time { return until }
	return x
}

// TestPoolAwaitsSlowServerAsLongAsCaller has a very slow server, for example behind a satellite link. BIND and
// unbound wait for it as well.
func TestPoolAwaitsSlowServerAsLongAsCaller(t *testing.T) {
	for _, servers := range []int{1, 2, 3} {
		for _, after := range []time.Duration{2100 * ms, 2500 * ms, 3500 * ms, 4200 * ms} {
			inBubble(t, func(n *network) {
				f := n.newPool(Config{})
				var all []netip.AddrPort
				for i := range servers {
					all = append(all, n.serve(fmt.Sprintf("192.0.2.%d", i+1), answerAfter(after)))
				}
				for range 5 {
					_, took, err := n.ask(f, newTaskUntil(4300*ms, all...))
					require.NoError(t, err, after)
					assert.Equal(t, after, took)
					time.Sleep(10 * time.Second)
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				assert.Zero(t, n.open, "sockets")
			})
		}
	}
}

func TestPoolAcceptsAnswerUntilTaskEnds(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		_, took, err := n.ask(f, newTask(n.serve("192.0.2.1", answerAfter(2500*ms)))) // the last query was sent after 600 ms
		require.NoError(t, err)
		assert.Equal(t, 2500*ms, took)
	})
}

// TestZoneBacksOffWhileTaskWaits requires that waiting sends no queries: the zone is in backoff until an answer
// comes.
func TestZoneBacksOffWhileTaskWaits(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", dead)
		done := make(chan error, 1)
		go func() { _, err := f.QueryServers(context.Background(), newTaskUntil(4300*ms, a)); done <- err }()
		time.Sleep(2601 * ms) // the third query was sent after 600 ms
		before := len(n.queries())
		assert.Equal(t, maxAttempts, before)
		_, took, err := n.ask(f, newTaskUntil(4300*ms, a))
		assert.ErrorIs(t, err, ErrNoServers)
		assert.Zero(t, took)
		assert.ErrorIs(t, <-done, ErrNoServers)
		assert.Equal(t, 4300*ms, time.Since(n.start))
		time.Sleep(zoneBackoffTime - ms)
		_, _, err = n.ask(f, newTaskUntil(4300*ms, a))
		assert.ErrorIs(t, err, ErrNoServers)
		assert.Len(t, n.queries(), before)
		time.Sleep(ms)
		n.serve("192.0.2.1", answerAfter(10*ms))
		_, _, err = n.ask(f, newTask(a))
		assert.NoError(t, err)
	})
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", answerAfter(3*time.Second))
		_, _, err := n.ask(f, newTaskUntil(4300*ms, a))
		require.NoError(t, err)
		_, _, err = n.ask(f, newTaskUntil(4300*ms, a))
		require.NoError(t, err, "an answer ends the backoff")
	})
}

// TestTaskWithResponseWaitsNoLonger has a rejected response. The task then does not wait for late answers.
func TestTaskWithResponseWaitsNoLonger(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{Hedge: Hedge{Off: true}})
		a, b := n.serve("192.0.2.1", respondAfter(dns.RcodeServerFailure, 10*ms)), n.serve("192.0.2.2", dead)
		_, took, err := n.ask(f, newTaskUntil(4300*ms, a, b))
		require.ErrorIs(t, err, ErrNoServers)
		assert.LessOrEqual(t, took, 2800*ms)
	})
}

// TestTaskWithEndEarlySendsNoMoreQueries has a task with EndEarly, because another question may have an answer.
func TestTaskWithEndEarlySendsNoMoreQueries(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		a := n.serve("192.0.2.1", answerAfter(3*time.Second))
		x := newTask(a)
		x.Minimised, x.EndEarly = true, true
		_, took, err := n.ask(f, x)
		require.ErrorIs(t, err, ErrNoServers)
		assert.Equal(t, 7*initialRTO, took)
		_, took, err = n.ask(f, newTaskUntil(4300*ms, a))
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, took)
		_, took, err = n.ask(f, x)
		require.ErrorIs(t, err, ErrNoServers)
		assert.Equal(t, maxRTO, took, "the server is known to be slow")
	})
}

// TestTaskEndsEarlyAfterRejectedResponse has a task that gets EndEarly with its first response, from a server whose
// address was found late. The task then waits a second for other servers.
func TestTaskEndsEarlyAfterRejectedResponse(t *testing.T) {
	for name, x := range map[string]struct {
		found time.Duration // time that the search for the good server takes; 0 means that there is none
		dead  int           // number of silent servers
		err   error
		took  time.Duration // after the rejected response
	}{
		"good server found":          {found: 900 * ms, took: 910 * ms},
		"good server found too late": {found: 1100 * ms, err: ErrEndedEarly, took: time.Second},
		"no other server":            {err: ErrNoServers},
		"silent server":              {dead: 1, err: ErrNoServers, took: 7 * initialRTO},
		"many silent servers":        {dead: 12, err: ErrEndedEarly, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(n *network) {
				f := n.newPool(Config{Hedge: Hedge{Off: true}})
				found := [][]netip.AddrPort{{n.serve("192.0.2.1", respondAfter(dns.RcodeServerFailure, 10*ms))}, nil}
				for i := range x.dead {
					found[1] = append(found[1], n.serve(fmt.Sprintf("192.0.2.1%02d", i), dead))
				}
				if x.found > 0 {
					found[1] = append(found[1], n.serve("192.0.2.2", answerAfter(10*ms)))
				}
				delays := []time.Duration{1500 * ms, x.found}
				task := newTask()
				task.FindServers = func(context.Context, SearchScope, <-chan struct{}) (servers []netip.AddrPort, err error) {
					if len(found) == 0 {
						return nil, nil
					}
					time.Sleep(delays[0])
					servers, found, delays = found[0], found[1:], delays[1:]
					return servers, nil
				}
				var rejectedAt time.Time
				task.CheckResponse = func(m *dns.Msg, _ netip.AddrPort) error {
					if m.Rcode == dns.RcodeSuccess {
						return nil
					}
					rejectedAt, task.EndEarly = time.Now(), true
					return ErrFailed
				}
				_, err := f.QueryServers(context.Background(), task)
				assert.Equal(t, x.err, err)
				assert.Equal(t, x.took, time.Since(rejectedAt))
			})
		})
	}
}

// TestLongAwaitedQueryReleasesItsSlot requires that queries that are unlikely to be answered release their slots to
// waiting queries.
func TestLongAwaitedQueryReleasesItsSlot(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{MaxPerServer: 12, Hedge: Hedge{Off: true}})
		a := n.serve("192.0.2.1", answerUnless(func(q dns.Question) bool { return q.Name == "www.evil." }, 10*ms))
		for i := range 4 { // tasks of three queries each
			x := newTaskFor(fmt.Sprintf("z%d.", i), "www.evil.", dns.TypeA, a)
			until := time.Now().Add(4300 * ms)
			x.AwaitUntil = func() time.Time { return until }
			go func() { _, _ = f.QueryServers(context.Background(), x) }()
		}
		time.Sleep(2700 * ms)
		_, took, err := n.ask(f, newTask(a))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}
