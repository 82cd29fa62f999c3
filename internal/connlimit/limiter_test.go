package connlimit_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/connlimit"
)

// someone returns the address of client n.
func someone(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)})
}

// holder is a connection with a slot in the model.
type holder struct {
	seat  *connlimit.Slot
	key   netip.Addr
	uses  int
	since int // when it became idle, or came into use
	gone  bool
}

// model is a simple implementation of connlimit.Limiter that searches all connections.
type model struct {
	size int
	open []*holder
}

// counts returns the number of slots of each client, the largest of these numbers, and the number of evicted slots.
func (m *model) counts() (by map[netip.Addr]int, most, all, gone int) {
	by = make(map[netip.Addr]int)
	for _, h := range m.open {
		if h.gone {
			gone++
			continue
		}
		all++
		by[h.key]++
		most = max(most, by[h.key])
	}
	return by, most, all, gone
}

// first returns the connection of a client that must be evicted; nil if there is none.
func (m *model) first(key netip.Addr) (out *holder) {
	for _, h := range m.open {
		if h.gone || h.key != key {
			continue
		}
		if out == nil || h.uses == 0 && out.uses > 0 || (h.uses == 0) == (out.uses == 0) && h.since < out.since {
			out = h
		}
	}
	return out
}

// check returns a description of a wrong eviction, or of a missing one, for a further connection of a client.
func (m *model) check(t *testing.T, key netip.Addr, ok bool, left *holder) {
	by, most, all, gone := m.counts()
	full := all >= m.size
	own := by[key] == most
	switch {
	case !full:
		require.True(t, ok)
		require.Nil(t, left)
	case gone >= max(1, m.size/8), own && m.first(key).uses > 0:
		require.False(t, ok)
		require.Nil(t, left)
	case own:
		require.True(t, ok)
		require.Same(t, m.first(key), left)
	default:
		require.True(t, ok)
		require.NotNil(t, left)
		require.Equal(t, most, by[left.key])
		require.Same(t, m.first(left.key), left)
		for other, n := range by {
			if left.uses > 0 && n == most {
				require.Positive(t, m.first(other).uses, "a client with the most slots has an idle one")
			}
		}
	}
}

func TestLimiterEvictsSlotOfClientWithMost(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := model{size: 1 + rng.IntN(20)}
		s := connlimit.New(m.size)
		closing := make(chan struct{})
		close(closing) // Take does not wait
		var left *holder
		for now := range 500 {
			if rng.IntN(2) == 0 {
				me := &holder{key: someone(min(rng.IntN(6), rng.IntN(6))), since: now}
				left = nil
				seat, ok := s.AcquireSlot(me.key, closing, func(inUse bool) {
					assert.Equal(t, me.uses > 0, inUse)
					left = me
				})
				m.check(t, me.key, ok, left)
				if left != nil {
					left.gone = true
				}
				if me.seat = seat; ok {
					m.open = append(m.open, me)
				}
				continue
			}
			if len(m.open) > 0 {
				m.step(rng.IntN(len(m.open)), rng.IntN(4), now)
			}
		}
	}
}

// step releases a slot, or begins or ends a use of it.
func (m *model) step(i, what, now int) {
	h := m.open[i]
	switch {
	case what == 0:
		h.seat.Release()
		h.seat.Release()
		m.open = append(m.open[:i], m.open[i+1:]...)
	case what == 1 && h.uses > 0:
		h.seat.EndUse()
		if h.uses--; h.uses == 0 {
			h.since = now
		}
	case what > 1:
		h.seat.BeginUse()
		if h.uses++; h.uses == 1 {
			h.since = now
		}
	}
}

// TestAcquireSlotWaitsForEvictedConnections keeps the maximum of evicted connections in use. New connections must wait.
func TestAcquireSlotWaitsForEvictedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := connlimit.New(2)
		closing := make(chan struct{})
		take := func(n int) (seat *connlimit.Slot) {
			seat, ok := s.AcquireSlot(someone(n), closing, func(bool) {})
			require.True(t, ok)
			return seat
		}
		first, second := take(1), take(1)
		first.BeginUse()
		second.BeginUse()
		time.Sleep(time.Second)
		take(2) // the first of the others is given up
		start := time.Now()
		time.AfterFunc(3*time.Second, first.Release)
		take(3)
		assert.Equal(t, 3*time.Second, time.Since(start))
		time.AfterFunc(time.Second, func() { close(closing) })
		_, ok := s.AcquireSlot(someone(4), closing, func(bool) {})
		assert.False(t, ok)
		assert.Equal(t, 4*time.Second, time.Since(start))
	})
}

// A call that would have to wait returns at once if 64 others are waiting.
func TestAcquireSlotBoundsWaitingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := connlimit.New(1)
		closing := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(closing) })
		take := func(n int) bool {
			_, ok := s.AcquireSlot(someone(n), closing, func(bool) {})
			return ok
		}
		require.True(t, take(1))
		require.True(t, take(2), "evicts the first, which stays open")
		for n := range 64 {
			go take(3 + n)
		}
		synctest.Wait()
		start := time.Now()
		assert.False(t, take(100))
		assert.Zero(t, time.Since(start))
		<-closing
		synctest.Wait()
	})
}

func TestNilLimiterSetsNoLimit(t *testing.T) {
	var s *connlimit.Limiter
	for range 10 {
		seat, ok := s.AcquireSlot(netip.Addr{}, nil, func(bool) { t.Error("nobody has to leave") })
		assert.True(t, ok)
		seat.BeginUse()
		seat.EndUse()
		seat.Release()
	}
}

func TestClientAddressIsAddressOrIPv6Network(t *testing.T) {
	for at, want := range map[string]string{
		"192.0.2.1:53": "192.0.2.1", "[::ffff:192.0.2.1]:53": "192.0.2.1", "[2001:db8:1:2:3:4:5:6]:53": "2001:db8:1:2::",
		"[fe80::1%eth0]:53": "fe80::1%eth0",
	} {
		ap := netip.MustParseAddrPort(at)
		assert.Equal(t, want, connlimit.ClientAddress(net.TCPAddrFromAddrPort(ap)).String())
		assert.Equal(t, want, connlimit.ClientAddress(net.UDPAddrFromAddrPort(ap)).String())
	}
	assert.Equal(t, netip.Addr{}, connlimit.ClientAddress(&net.UnixAddr{Name: "socket", Net: "unix"}))
}

// BenchmarkTake evicts a slot for a new connection, and begins and ends a use of it. There are as many clients as slots.
func BenchmarkTake(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := connlimit.New(n)
			type kept struct{ *connlimit.Slot }
			gone := make(chan kept, 1)
			take := func(i int) {
				var k kept
				k.Slot, _ = s.AcquireSlot(someone(i), nil, func(bool) { gone <- k })
				k.BeginUse()
				k.EndUse()
			}
			for i := range n {
				take(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				take(n + i)
				(<-gone).Release()
			}
		})
	}
}
