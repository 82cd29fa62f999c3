// Package connlimit limits the connections of a server, and selects the connection to close when a client opens one too many.
//
// A client is an address. It may have any number of connections while the server has free slots. When there is none, the client with the
// most connections loses one: the connection that has been idle for longest. If all its connections are in use, it is the connection
// that has been in use for longest, which closes when its queries are answered.
//
// So a client that opens many connections loses its own connections, even if it keeps them busy (RFC 7766 §6.2.3, §10). Each operation
// takes constant time for any number of connections.
package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// A Limiter limits the number of open connections. A nil Limiter sets no limit. It is safe for concurrent use.
type Limiter struct {
	maxSlots   int // limit of heldSlots
	maxEvicted int // limit of evictedSlots

	mu           sync.Mutex // guards the fields below, and the clients and slots that they refer to
	heldSlots    int
	evictedSlots int
	clients      map[netip.Addr]*client
	ranks        []*slotBucket // clients by their number of slots
	highestRank  int           // index of the last rank with a client
	slotReleased chan struct{} // closed when a slot is released; nil: no AcquireSlot waits
}

// A slotBucket holds the clients with one number of slots, in the order in which they reached it.
type slotBucket struct {
	idle list.List // of *client: clients with an idle connection
	busy list.List // of *client: clients whose connections are all in use
}

// A client is the state of a client with at least one slot.
type client struct {
	address    netip.Addr
	idle, busy list.List     // of *Slot, in the order in which they became idle or busy
	rank       *list.List    // idle or busy list of a slotBucket
	element    *list.Element // position in rank
}

func (c *client) slotCount() int { return c.idle.Len() + c.busy.Len() }

// A Slot is the permission to keep a connection open. A nil Slot belongs to a nil Limiter. It is safe for concurrent use.
type Slot struct {
	limiter *Limiter
	onEvict func(inUse bool)
	client  *client       // nil: the slot was evicted
	element *list.Element // position in the client's idle or busy list
	uses    int           // number of requests in progress
	release sync.Once
}

// New returns a Limiter with n slots. While an evicted connection is still open, its successor uses an additional slot. There are at most
// n/8 additional slots, and at least one.
func New(n int) *Limiter {
	return &Limiter{maxSlots: n, maxEvicted: max(1, n/8), clients: make(map[netip.Addr]*client), ranks: []*slotBucket{new(slotBucket)}}
}

// ClientAddress returns the address that identifies a client. For IPv4, that is the address itself. For IPv6, it is the /64 network,
// because one client can use all its addresses. A link-local address is not shortened, because other clients share its network. All
// addresses other than TCP and UDP addresses are one client.
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

// AcquireSlot returns a slot for a new, idle connection of the client with the address key. If no slot is free, it evicts another
// connection and calls the function leave of its slot, which must not block or use s. The evicted connection must close: at once if it is
// idle (inUse is false), otherwise when it becomes idle.
//
// AcquireSlot reports false if the client itself has the most slots and all of them are in use. If too many evicted connections are still
// open, it waits. It also reports false if the channel closing is closed while it waits.
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

// selectVictim returns the slot to evict for a new connection of the client; nil if there is none. The caller holds mu.
func (s *Limiter) selectVictim(key netip.Addr) *Slot {
	r := s.ranks[s.highestRank]
	c := s.clients[key]
	switch {
	case c != nil && c.slotCount() == s.highestRank: // with the new slot, this client has the most
		if c.idle.Len() == 0 {
			return nil
		}
	case r.idle.Len() > 0:
		c = r.idle.Front().Value.(*client)
	case r.busy.Len() > 0:
		c = r.busy.Front().Value.(*client)
	default:
		return nil // no slot is held
	}
	if c.idle.Len() > 0 {
		return c.idle.Front().Value.(*Slot)
	}
	return c.busy.Front().Value.(*Slot)
}

// evictSlot removes a slot from its client, and calls its onEvict. The caller holds mu.
func (s *Limiter) evictSlot(t *Slot) {
	s.removeSlot(t)
	s.evictedSlots++
	t.onEvict(t.uses > 0)
}

// removeSlot removes a slot from its client. The caller holds mu.
func (s *Limiter) removeSlot(t *Slot) {
	c := t.client
	t.currentList().Remove(t.element)
	t.client, t.element = nil, nil
	s.heldSlots--
	s.updateRank(c)
}

// currentList returns the list of its client that contains t: idle or busy. The caller holds mu.
func (t *Slot) currentList() *list.List {
	if t.uses > 0 {
		return &t.client.busy
	}
	return &t.client.idle
}

// updateRank moves a client to the rank for its number of slots, which has changed by at most one. The caller holds mu.
func (s *Limiter) updateRank(c *client) {
	n := c.slotCount()
	if n == len(s.ranks) {
		s.ranks = append(s.ranks, new(slotBucket))
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

// BeginUse records that a request on the connection begins. The connection is busy until EndUse was called for each request.
func (t *Slot) BeginUse() { t.addUses(1) }

// EndUse records that a request on the connection has ended.
func (t *Slot) EndUse() { t.addUses(-1) }

// addUses adds n, which may be negative, to the number of requests in progress. It moves the slot between the idle and the busy list.
func (t *Slot) addUses(n int) {
	if t == nil {
		return
	}
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()
	before := t.uses
	t.uses += n
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

// Release frees the slot. It must be called when the connection has closed. Further calls have no effect.
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
