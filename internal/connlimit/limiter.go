// Package seats says which connections stay when clients open more than a server has room for.
//
// A client is an address, and has as many connections as it likes while there is room. When there is none, the client that has
// most gives one up: that which has been idle for the longest. If all of its connections are in use, it is that which has been
// in use for the longest, and it ends when its questions are answered. So whoever opens many connections closes its own, however
// busy it keeps them (RFC 7766 §6.2.3, §10). Each step takes constant time, whatever the number of connections.
package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// Limiter bounds connections. Nil bounds nothing. It is safe for concurrent use.
type Limiter struct {
	maxSlots   int // taken at a time
	maxEvicted int // given up and not free yet

	mu           sync.Mutex // guards all that follows, and what it leads to
	heldSlots    int
	evictedSlots int
	clients      map[netip.Addr]*client
	ranks        []*rank       // by the number of seats that a client has
	highestRank  int           // the last rank with a client
	slotReleased chan struct{} // closed when a seat becomes free; nil: nobody waits
}

// rank is the clients that have as many seats as each other, in the order in which they became so.
type rank struct {
	idle list.List // of *client, with a seat that is not in use
	busy list.List // of *client, without
}

// client is a client with at least one seat.
type client struct {
	address    netip.Addr
	idle, busy list.List // of *Seat, in the order in which they became so
	rank       *list.List
	element    *list.Element // in rank
}

func (c *client) slotCount() int { return c.idle.Len() + c.busy.Len() }

// A Slot is the right of a connection to be open. Nil is one of as many as there may be. It is safe for concurrent use.
type Slot struct {
	limiter *Limiter
	onEvict func(inUse bool)
	client  *client       // nil: the seat was given up
	element *list.Element // in the client's idle or busy
	uses    int
	release sync.Once
}

// New returns n seats. While one that was given up is in use, there is another one in its place; of these there are n/8 at most,
// and at least one.
func New(n int) *Limiter {
	return &Limiter{maxSlots: n, maxEvicted: max(1, n/8), clients: make(map[netip.Addr]*client), ranks: []*rank{new(rank)}}
}

// ClientAddress returns the client at an address: the address of an IPv4 client, and the network of 64 bits of an IPv6 client, who has all
// of its addresses, but not that of its link, which others have too. Those without an IP address are one client.
func ClientAddress(at net.Addr) netip.Addr {
	var ip netip.Addr
	switch at := at.(type) {
	case *net.TCPAddr:
		ip = at.AddrPort().Addr()
	case *net.UDPAddr:
		ip = at.AddrPort().Addr()
	}
	ip = ip.Unmap()
	if ip.Is6() && !ip.IsLinkLocalUnicast() {
		p, _ := ip.WithZone("").Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// AcquireSlot takes a seat for a connection of a client, which is not in use yet. If another one is given up for it, that one's leave is
// called, which must not block nor use s: its connection is to be closed, if it is in use as soon as it is not any more. Take
// reports false if the client has most seats and uses all of them. It waits while too many that were given up are not free, and
// reports false if closing is closed meanwhile.
func (s *Limiter) AcquireSlot(key netip.Addr, closing <-chan struct{}, leave func(inUse bool)) (*Slot, bool) {
	if s == nil {
		return nil, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.heldSlots >= s.maxSlots {
		other := s.selectVictim(key)
		if other == nil {
			return nil, false
		}
		if s.evictedSlots < s.maxEvicted {
			s.evictSlot(other)
			break
		}
		if s.slotReleased == nil {
			s.slotReleased = make(chan struct{})
		}
		freed := s.slotReleased
		s.mu.Unlock()
		select {
		case <-freed:
			s.mu.Lock()
		case <-closing:
			s.mu.Lock()
			return nil, false
		}
	}
	c := s.clients[key]
	if c == nil {
		c = &client{address: key}
		s.clients[key] = c
	}
	t := &Slot{limiter: s, onEvict: leave, client: c}
	t.element = c.idle.PushBack(t)
	s.heldSlots++
	s.updateRank(c)
	return t, true
}

// selectVictim returns the seat that is given up for one more of a client, or nil. The caller holds mu.
func (s *Limiter) selectVictim(key netip.Addr) *Slot {
	r := s.ranks[s.highestRank]
	c := s.clients[key]
	switch {
	case c != nil && c.slotCount() == s.highestRank: // it has most when it has one more
		if c.idle.Len() == 0 {
			return nil
		}
	case r.idle.Len() > 0:
		c = r.idle.Front().Value.(*client)
	case r.busy.Len() > 0:
		c = r.busy.Front().Value.(*client)
	default:
		return nil // there are no seats at all
	}
	if c.idle.Len() > 0 {
		return c.idle.Front().Value.(*Slot)
	}
	return c.busy.Front().Value.(*Slot)
}

// evictSlot gives up a seat. The caller holds mu.
func (s *Limiter) evictSlot(t *Slot) {
	s.removeSlot(t)
	s.evictedSlots++
	t.onEvict(t.uses > 0)
}

// removeSlot takes a seat from its client. The caller holds mu.
func (s *Limiter) removeSlot(t *Slot) {
	c := t.client
	t.currentList().Remove(t.element)
	t.client, t.element = nil, nil
	s.heldSlots--
	s.updateRank(c)
}

// currentList returns the list of the client that t is in. The caller holds mu.
func (t *Slot) currentList() *list.List {
	if t.uses > 0 {
		return &t.client.busy
	}
	return &t.client.idle
}

// updateRank puts a client where it belongs. Its number of seats has changed by one at most. The caller holds mu.
func (s *Limiter) updateRank(c *client) {
	n := c.slotCount()
	if n == len(s.ranks) {
		s.ranks = append(s.ranks, new(rank))
	}
	to := &s.ranks[n].idle
	if c.idle.Len() == 0 {
		to = &s.ranks[n].busy
	}
	if to != c.rank {
		if c.rank != nil {
			c.rank.Remove(c.element)
		}
		c.rank, c.element = to, to.PushBack(c)
	}
	if n == 0 {
		to.Remove(c.element)
		delete(s.clients, c.address)
	}
	s.highestRank = max(s.highestRank, n)
	if r := s.ranks[s.highestRank]; s.highestRank > 0 && r.idle.Len()+r.busy.Len() == 0 {
		s.highestRank--
	}
}

// BeginUse says that the seat has one use more.
func (t *Slot) BeginUse() { t.addUses(1) }

// EndUse says that a use has ended.
func (t *Slot) EndUse() { t.addUses(-1) }

// addUses changes the number of uses.
func (t *Slot) addUses(by int) {
	if t == nil {
		return
	}
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	before := t.uses
	t.uses += by
	if t.client == nil || before > 0 && t.uses > 0 {
		return
	}
	from, to := &t.client.idle, &t.client.busy
	if before > 0 {
		from, to = to, from
	}
	from.Remove(t.element)
	t.element = to.PushBack(t)
	t.limiter.updateRank(t.client)
}

// Release gives the seat back. Only the first call does anything.
func (t *Slot) Release() {
	if t == nil {
		return
	}
	t.release.Do(func() {
		s := t.limiter
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.client != nil {
			s.removeSlot(t)
		} else {
			s.evictedSlots--
		}
		if s.slotReleased != nil {
			close(s.slotReleased)
			s.slotReleased = nil
		}
	})
}
