package group_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
)

// Stats and Export take the Client's lock before the servers'.
func TestServerReleasesLockBeforePoolLock(t *testing.T) {
	var count group.Counters
	var s *group.Server
	spawned := 0
	hedging := group.Hedging{Percentile: 0.9, MaxHedges: 2, Share: 0.05, MinDelay: time.Millisecond, LocalMinDelay: time.Millisecond, MaxDelay: time.Second}
	p := group.NewPool(group.Config{
		Hedging: hedging, Timeout: time.Second, Engine: policy.New(hedging.PolicyConfig()), Counters: &count,
		Log: ops.NewLog(nil, "dnshedge", "dns", "", &count.Ignored),
		Spawn: func(func(context.Context)) bool {
			spawned++
			assert.True(t, group.HealthIsFree(s))
			return false
		},
	})
	scheme, _ := transport.FindScheme("udp")
	s, err := p.GetOrCreateServer("a", group.UsePermanently, func() (group.Target, error) {
		return group.Target{Scheme: scheme, Transport: transport.Config{Dialer: new(net.Dialer), Addr: "127.0.0.1:1", Size: 512}}, nil
	})
	require.NoError(t, err)
	defer s.Close()
	group.Silence(s)
	group.Servers{s}.ProbeUnhealthy(time.Now(), nil, nil)
	assert.Equal(t, 1, spawned)
}

// A question whose deadline is near sends its next query after half of its time. That query does not lengthen the
// timeout of the questions that follow.
func TestEarlyRetransmissionDoublesNoTimeout(t *testing.T) {
	var r group.RTO
	start := time.Now()
	for i := range 3 {
		sent := start.Add(time.Duration(i) * 45 * time.Millisecond)
		r.BackOff(sent, sent.Add(25*time.Millisecond))
	}
	assert.Equal(t, time.Second, r.Timeout())
	r.BackOff(start, start.Add(time.Second))
	assert.Equal(t, 2*time.Second, r.Timeout())
	r.BackOff(start.Add(2*time.Second), start.Add(3*time.Second))
	assert.Equal(t, 4*time.Second, r.Timeout())
}
