// Package seats says which connections stay when clients open more than a server has room for.
//
// A client is an address, and has as many connections as it likes while there is room. When there is none, the client that has
// most gives one up: that which has been idle for the longest. If all of its connections are in use, it is that which has been
// in use for the longest, and it ends when its questions are answered. So whoever opens many connections closes its own, however
// busy it keeps them (RFC 7766 §6.2.3, §10). Each step takes constant time, whatever the number of connections.
package seats

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// Seats bounds connections. Nil bounds nothing. It is safe for concurrent use.
type Seats struct {
	max     int // taken at a time
	maxGone int // given up and not free yet

	mu      sync.Mutex // guards all that follows, and what it leads to
	taken   int
	gone    int
	clients map[netip.Addr]*client
	ranks   []*rank       // by the number of seats that a client has
	most    int           // the last rank with a client
	freed   chan struct{} // closed when a seat becomes free; nil: nobody waits
}

// rank is the clients that have as many seats as each other, in the order in which they became so.
type rank struct {
	idle list.List // of *client, with a seat that is not in use
	busy list.List // of *client, without
}

// client is a client with at least one seat.
type client struct {
	key        netip.Addr
	idle, busy list.List // of *Seat, in the order in which they became so
	rank       *list.List
	at         *list.Element // in rank
}

func (c *client) seats() int { return c.idle.Len() + c.busy.Len() }

// A Seat is the right of a connection to be open. Nil is one of as many as there may be. It is safe for concurrent use.
type Seat struct {
	all     *Seats
	leave   func(inUse bool)
	client  *client       // nil: the seat was given up
	at      *list.Element // in the client's idle or busy
	uses    int
	release sync.Once
}

// New returns n seats. While one that was given up is in use, there is another one in its place; of these there are n/8 at most,
// and at least one.
func New(n int) *Seats {
	return &Seats{max: n, maxGone: max(1, n/8), clients: make(map[netip.Addr]*client), ranks: []*rank{new(rank)}}
}

// Of returns the client at an address: the address of an IPv4 client, and the network of 64 bits of an IPv6 client, who has all
// of its addresses, but not that of its link, which others have too. Those without an IP address are one client.
func Of(at net.Addr) netip.Addr {
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

// Take takes a seat for a connection of a client, which is not in use yet. If another one is given up for it, that one's leave is
// called, which must not block nor use s: its connection is to be closed, if it is in use as soon as it is not any more. Take
// reports false if the client has most seats and uses all of them. It waits while too many that were given up are not free, and
// reports false if closing is closed meanwhile.
func (s *Seats) Take(key netip.Addr, closing <-chan struct{}, leave func(inUse bool)) (*Seat, bool) {
	if s == nil {
		return nil, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.taken >= s.max {
		other := s.excess(key)
		if other == nil {
			return nil, false
		}
		if s.gone < s.maxGone {
			s.giveUp(other)
			break
		}
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
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
		c = &client{key: key}
		s.clients[key] = c
	}
	t := &Seat{all: s, leave: leave, client: c}
	t.at = c.idle.PushBack(t)
	s.taken++
	s.rank(c)
	return t, true
}

// excess returns the seat that is given up for one more of a client, or nil. The caller holds mu.
func (s *Seats) excess(key netip.Addr) *Seat {
	r := s.ranks[s.most]
	c := s.clients[key]
	switch {
	case c != nil && c.seats() == s.most: // it has most when it has one more
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
		return c.idle.Front().Value.(*Seat)
	}
	return c.busy.Front().Value.(*Seat)
}

// giveUp gives up a seat. The caller holds mu.
func (s *Seats) giveUp(t *Seat) {
	s.remove(t)
	s.gone++
	t.leave(t.uses > 0)
}

// remove takes a seat from its client. The caller holds mu.
func (s *Seats) remove(t *Seat) {
	c := t.client
	t.list().Remove(t.at)
	t.client, t.at = nil, nil
	s.taken--
	s.rank(c)
}

// list returns the list of the client that t is in. The caller holds mu.
func (t *Seat) list() *list.List {
	if t.uses > 0 {
		return &t.client.busy
	}
	return &t.client.idle
}

// rank puts a client where it belongs. Its number of seats has changed by one at most. The caller holds mu.
func (s *Seats) rank(c *client) {
	n := c.seats()
	if n == len(s.ranks) {
		s.ranks = append(s.ranks, new(rank))
	}
	to := &s.ranks[n].idle
	if c.idle.Len() == 0 {
		to = &s.ranks[n].busy
	}
	if to != c.rank {
		if c.rank != nil {
			c.rank.Remove(c.at)
		}
		c.rank, c.at = to, to.PushBack(c)
	}
	if n == 0 {
		to.Remove(c.at)
		delete(s.clients, c.key)
	}
	s.most = max(s.most, n)
	if r := s.ranks[s.most]; s.most > 0 && r.idle.Len()+r.busy.Len() == 0 {
		s.most--
	}
}

// Begin says that the seat has one use more.
func (t *Seat) Begin() { t.use(1) }

// End says that a use has ended.
func (t *Seat) End() { t.use(-1) }

// use changes the number of uses.
func (t *Seat) use(by int) {
	if t == nil {
		return
	}
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	before := t.uses
	t.uses += by
	if t.client == nil || before > 0 && t.uses > 0 {
		return
	}
	from, to := &t.client.idle, &t.client.busy
	if before > 0 {
		from, to = to, from
	}
	from.Remove(t.at)
	t.at = to.PushBack(t)
	t.all.rank(t.client)
}

// Free gives the seat back. Only the first call does anything.
func (t *Seat) Free() {
	if t == nil {
		return
	}
	t.release.Do(func() {
		s := t.all
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.client != nil {
			s.remove(t)
		} else {
			s.gone--
		}
		if s.freed != nil {
			close(s.freed)
			s.freed = nil
		}
	})
}
