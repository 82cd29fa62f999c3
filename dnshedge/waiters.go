package dnshedge

import (
	"cmp"
	"math"
	"net"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

// clientQueues limits how many questions of DNS clients wait for answers at a time, because each waiting question needs
// a goroutine and memory. Equal questions count separately, although they share one exchange.
type clientQueues struct {
	datagrams fairQueue // in subqueues by the domain of the question, because addresses of datagrams can be forged
	streams   fairQueue // in subqueues by the client
}

// newClientQueues returns queues with the limits: twice maxInFlight for datagrams, and twice maxInFlight for streams. A
// maxInFlight of 0 stands for the default.
func newClientQueues(maxInFlight int) *clientQueues {
	n := 2 * min(cmp.Or(max(0, maxInFlight), defaultInFlight), math.MaxInt/8)
	return &clientQueues{datagrams: fairQueue{max: n}, streams: fairQueue{max: n}}
}

// queueFor returns the queue for a client's query, and the key that selects a subqueue. Queries over UDP are grouped by
// the domain of the question, because a UDP client can forge its address. Other queries are grouped by client.
func (w *clientQueues) queueFor(client net.Addr, q *wire.Query) (l *fairQueue, subqueueKey string) {
	if _, datagram := client.(*net.UDPAddr); datagram {
		return &w.datagrams, q.ApproximateZone()
	}
	return &w.streams, streamSubqueueKey(client)
}

// streamSubqueueKey returns the subqueue key of a client: its IPv4 address, or its IPv6 /64 network. Clients without an
// IP address share one key.
func streamSubqueueKey(client net.Addr) string {
	b, _ := connlimit.ClientAddress(client).MarshalBinary() // which never fails
	return string(b)
}
