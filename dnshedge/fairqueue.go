package dnshedge

import (
	"cmp"
	"hash/maphash"
	"math"
	"net"
	"sync"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

// subqueueCount is the number of subqueues. It is so large that few domains share a subqueue with a flooded domain.
const subqueueCount = 128

// A fairQueue holds waiting queries in subqueues, by the domain of the question or by client. A full queue cancels the
// oldest query of its longest subqueue, so a flood of questions in one domain displaces itself first. It is safe for
// concurrent use.
type fairQueue struct {
	max int // limit of waiting queries

	mu        sync.Mutex // guards the fields below, and all queries in the queue
	seed      maphash.Seed
	n         int        // waiting queries
	arrivals  uint64     // queries added so far
	subqueues []subqueue // nil before first use
}

// A queuedQuery is the entry of one query in a fairQueue. An entry is added to a queue at most once. fairQueue.mu
// guards its fields.
type queuedQuery struct {
	canceller
	subqueue   *subqueue // nil: the query is not in the queue
	prev, next *queuedQuery
	arrival    uint64 // value of fairQueue.arrivals when the query was added
}

// A subqueue is a part of a fairQueue: the waiting queries for some domains, or of some clients. It is a linked list,
// the oldest query first. fairQueue.mu guards its fields.
type subqueue struct {
	first, last *queuedQuery
	n           int
}

// removeQuery removes p, the entry of a waiting query, from the linked list of this subqueue, which must contain it.
func (l *subqueue) removeQuery(p *queuedQuery) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.subqueue, p.prev, p.next = nil, nil, nil
	l.n--
}

// A canceller is a query in a fairQueue. The queue calls Cancel when it removes the query because the queue is full.
type canceller interface{ Cancel() }

// enqueue adds a query with its entry p, the zero value, to the subqueue for a domain or a client's address. If the
// queue is full, it cancels the oldest query of the longest subqueue. The caller must call dequeue when the query has
// ended.
func (l *fairQueue) enqueue(p *queuedQuery, c canceller, subqueueKey string) {
	l.mu.Lock()
	l.arrivals++
	s := l.selectSubqueue(subqueueKey)
	p.canceller, p.arrival, p.subqueue, p.prev = c, l.arrivals, s, s.last
	if s.last == nil {
		s.first = p
	} else {
		s.last.next = p
	}
	s.last = p
	s.n++
	var first *queuedQuery
	if l.n++; l.n > l.max {
		first = l.selectQueryToDrop()
		first.subqueue.removeQuery(first)
		l.n--
	}
	l.mu.Unlock()
	if first != nil {
		first.Cancel()
	}
}

// selectSubqueue returns the subqueue for a key, which is a domain or a client's address. The number of subqueues is
// fixed, and a hash of the key selects one. So several keys may share a subqueue. The caller must hold mu.
func (l *fairQueue) selectSubqueue(subqueueKey string) *subqueue {
	if l.subqueues == nil {
		l.subqueues, l.seed = make([]subqueue, subqueueCount), maphash.MakeSeed()
	}
	return &l.subqueues[maphash.String(l.seed, subqueueKey)%subqueueCount]
}

// selectQueryToDrop returns the query to remove from a full queue: the oldest query of the longest subqueue. Lengths
// are compared in eighths of the queue's limit. Of several longest subqueues, it selects the one with the oldest query.
// The caller must hold mu.
func (l *fairQueue) selectQueryToDrop() (oldest *queuedQuery) {
	for i := range l.subqueues {
		candidate := &l.subqueues[i]
		if candidate.n == 0 || oldest != nil && l.subqueueShare(candidate) < l.subqueueShare(oldest.subqueue) {
			continue
		}
		if p := candidate.first; oldest == nil || l.subqueueShare(candidate) > l.subqueueShare(oldest.subqueue) || p.arrival < oldest.arrival {
			oldest = p
		}
	}
	return oldest
}

// subqueueShare returns the length of a subqueue in eighths of the queue's limit, rounded down. This coarse measure
// ignores small differences, which occur by chance. The result is 0 for a subqueue of fewer than eight queries.
func (l *fairQueue) subqueueShare(s *subqueue) int {
	if s.n < 8 {
		return 0
	}
	return s.n * 8 / l.max
}

// dequeue removes p, the entry of a query that has ended, from the queue. It returns true if p was not in the queue any
// more, because a newer query has displaced it or dequeue was called before.
func (l *fairQueue) dequeue(p *queuedQuery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.subqueue == nil {
		return true
	}
	p.subqueue.removeQuery(p)
	l.n--
	return false
}

// clientQueues limits how many questions of DNS clients wait for answers at a time, because each waiting question needs
// a goroutine and memory. Equal questions from several clients count separately, although they share one exchange.
type clientQueues struct {
	datagrams fairQueue // in subqueues by the domain of the question, because addresses of datagrams can be forged
	streams   fairQueue // in subqueues by the client
}

// newClientQueues returns two queues of questions that DNS clients have sent over UDP and over streams. Each holds at
// most 2*maxInFlight waiting questions. A maxInFlight of 0 stands for the default of Client.MaxInFlight.
func newClientQueues(maxInFlight int) *clientQueues {
	n := 2 * min(cmp.Or(max(0, maxInFlight), defaultInFlight), math.MaxInt/8)
	return &clientQueues{datagrams: fairQueue{max: n}, streams: fairQueue{max: n}}
}

// selectQueue returns the queue for a client's query, and the key of its subqueue. Over UDP the key is the domain of
// the question, because a client can forge its address. Over streams it is the client's IPv4 address or IPv6 /64
// network.
func (w *clientQueues) selectQueue(client net.Addr, q *wire.Query) (queue *fairQueue, subqueueKey string) {
	if _, datagram := client.(*net.UDPAddr); datagram {
		return &w.datagrams, q.ApproximateZone()
	}
	return &w.streams, streamSubqueueKey(client)
}

// streamSubqueueKey returns the key of the subqueue for a client that sends queries over streams, such as TCP
// connections. It is the client's IPv4 address, or its IPv6 /64 network. Clients without an IP address share one key.
func streamSubqueueKey(client net.Addr) string {
	b, _ := connlimit.ClientAddress(client).MarshalBinary() // which never fails
	return string(b)
}
