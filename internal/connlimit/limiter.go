// Package connlimit limits the number of connections to a server. If a client opens one connection too many, it chooses a
// connection to close.
//
// A client is identified by its address, and may have any number of connections while the server has free slots. If there is no
// free slot, the client with the most connections loses one: the connection that has been idle for the longest time.
//
// If all connections of that client are in use, it loses the connection that has been in use for the longest time. That
// connection closes after its queries were answered.
//
// Therefore a client that opens many connections loses its own connections, even if it keeps them busy (RFC 7766 §6.2.3, §10).
// Each operation takes constant time for any number of connections.
package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// maxWaiting is the number of calls of AcquireSlot that may wait at a time, because a waiting connection is open and uses
// memory.
const maxWaiting = 64

// A Limiter limits the number of open connections to one server. A nil *Limiter allows any number. It must be made with [New],
// and is safe for concurrent use.
type Limiter struct {
	maxSlots   int // maximum of heldSlots
	maxEvicted int // maximum of evictedSlots

	mu           sync.Mutex             // guards the fields that follow, and all clients and slots
	heldSlots    int                    // number of connections that were not evicted
	evictedSlots int                    // number of connections that were evicted but are not closed yet
	clients      map[netip.Addr]*client // clients that have at least one slot
	ranks        []*clientRank          // ranks[n] holds the clients with n slots
	highestRank  int                    // largest number of slots that a client has
	slotReleased chan struct{}          // closed when a slot is released; nil: no AcquireSlot is waiting
	waiting      int                    // number of calls of AcquireSlot that are waiting
}

// A clientRank holds all clients that have the same number of slots, in the order in which they reached that number. The
// Limiter uses it to find the client with the most slots in constant time.
type clientRank struct {
	idle list.List // list of *client: clients with at least one idle connection
	busy list.List // list of *client: clients without an idle connection
}

// A client holds the slots of one client address, which has at least one slot. The mu of the Limiter guards it.
type client struct {
	address    netip.Addr    // result of ClientAddress for the client
	idle, busy list.List     // lists of *Slot, in the order in which the slots became idle or busy
	rank       *list.List    // list of a clientRank that contains the client
	element    *list.Element // element of rank that holds the client
}

// slotCount returns the number of slots of the client.
func (c *client) slotCount() int { return c.idle.Len() + c.busy.Len() }

// A Slot is the permission to keep one connection open. The slots of a nil *Limiter are nil, and their methods do nothing. A
// Slot is safe for concurrent use.
type Slot struct {
	limiter *Limiter
	onEvict func(inUse bool) // called when the slot is evicted
	client  *client          // owner of the slot; nil: the slot was evicted or released
	element *list.Element    // element that holds the slot in the idle or busy list of client
	uses    int              // number of requests in progress on the connection
	release sync.Once        // makes further calls of Release have no effect
}

// New returns a Limiter with n slots. In addition, there are n/8 slots, at least one, for connections that were evicted but are
// not closed yet.
func New(n int) *Limiter {
	return &Limiter{maxSlots: n, maxEvicted: max(1, n/8), clients: make(map[netip.Addr]*client), ranks: []*clientRank{new(clientRank)}}
}

// ClientAddress returns the address by which a Limiter identifies the client with the network address addr. It is the IPv4
// address, or the IPv6 /64 network, because one client can use all addresses of its network.
//
// A link-local address is not shortened, because other clients share its network. All addresses that are not TCP or UDP
// addresses identify the same client.
func ClientAddress(addr net.Addr) netip.Addr {
	var ip netip.Addr
	switch addr := addr.(type) {
	case *net.TCPAddr:
		ip = addr.AddrPort().Addr()
	case *net.UDPAddr:
		ip = addr.AddrPort().Addr()
	}
	ip = ip.Unmap()
	if ip.Is6() && !ip.IsLinkLocalUnicast() {
		p, _ := ip.WithZone("").Prefix(64) // 64 is in range
		ip = p.Addr()
	}
	return ip
}

// AcquireSlot returns a slot for a new connection of the client with the address key. The connection is idle at first. If no
// slot is free, AcquireSlot evicts another connection: it calls the function leave that was passed for its slot. It waits
// before that if too many evicted connections are still open.
//
// The function leave must make the connection close: at once if inUse is false, and otherwise when the connection becomes
// idle. It must not block or use s.
//
// AcquireSlot returns false if the client itself has the most slots and all of them are in use. It also returns false if the
// channel closing is closed while it waits, or if it would have to wait together with 64 other calls.
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
		if s.waiting >= maxWaiting {
			return nil, false
		}
		if s.slotReleased == nil {
			s.slotReleased = make(chan struct{})
		}
		if !s.awaitRelease(closing) {
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

// awaitRelease waits until a slot is released. It returns false if the channel closing is closed, even if a slot is released
// at the same time. The caller must hold mu, which is unlocked meanwhile, and must have made slotReleased.
func (s *Limiter) awaitRelease(closing <-chan struct{}) bool {
	freed := s.slotReleased
	s.waiting++
	s.mu.Unlock()
	select {
	case <-freed:
	case <-closing:
	}
	s.mu.Lock()
	s.waiting--
	select {
	case <-closing:
		return false
	default:
		return true
	}
}

// selectVictim returns the slot to evict for a new connection of the client with the address key. It returns nil if no slot may
// be evicted. The caller must hold mu.
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

// evictSlot takes the slot t away from its client, and makes the connection of the slot close by calling onEvict. The caller
// must hold mu.
func (s *Limiter) evictSlot(t *Slot) {
	s.removeSlot(t)
	s.evictedSlots++
	t.onEvict(t.uses > 0)
}

// removeSlot removes the slot t, which was evicted or released, from the lists of its client. The caller must hold mu.
func (s *Limiter) removeSlot(t *Slot) {
	c := t.client
	t.currentList().Remove(t.element)
	t.client, t.element = nil, nil
	s.heldSlots--
	s.updateRank(c)
}

// currentList returns the idle or busy list of the client, whichever contains t. The caller must hold mu.
func (t *Slot) currentList() *list.List {
	if t.uses > 0 {
		return &t.client.busy
	}
	return &t.client.idle
}

// updateRank moves the client c to the clientRank and the list that match its slots, after they have changed. The number of
// slots may have changed by at most one. A client without slots is removed. The caller must hold mu.
func (s *Limiter) updateRank(c *client) {
	n := c.slotCount()
	if n == len(s.ranks) {
		s.ranks = append(s.ranks, new(clientRank))
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

// BeginUse records that a request on the connection starts. The connection counts as in use until EndUse was called for each
// request.
func (t *Slot) BeginUse() { t.addUses(1) }

// EndUse records that a request on the connection has ended.
func (t *Slot) EndUse() { t.addUses(-1) }

// addUses adds n, which may be negative, to the number of requests in progress on the connection. It moves the slot between
// the idle and the busy list of its client if necessary.
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

// Release frees the slot. The caller must call it when the connection was closed. Further calls have no effect.
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
