package dnshedge

import (
	"cmp"
	"math"
	"net"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

// clientQueues bounds the questions of clients that wait for answers. Copies of one question are one exchange for the Client, but
// each takes a goroutine and its memory.
type clientQueues struct {
	datagrams fairQueue // in subqueues by the domain of the question, because addresses of datagrams can be forged
	streams   fairQueue // in subqueues by the client
}

// init sets the bounds: twice as many questions as Client.MaxInFlight over datagrams, and as many over streams.
func (w *clientQueues) init(maxInFlight int) {
	n := 2 * min(cmp.Or(max(0, maxInFlight), defaultInFlight), math.MaxInt/8)
	w.datagrams.max, w.streams.max = n, n
}

// queueFor returns the queue of a query, datagrams or streams by the type of the client's address, and its subqueue key.
// The key is the domain of the question over UDP, where addresses can be forged, and otherwise the client.
func (w *clientQueues) queueFor(client net.Addr, q *wire.Query) (l *fairQueue, lane string) {
	if _, datagram := client.(*net.UDPAddr); datagram {
		return &w.datagrams, q.Zone()
	}
	return &w.streams, streamSubqueueKey(client)
}

// streamSubqueueKey returns the subqueue key of a client: its IPv4 address, or its IPv6 /64 network. Clients without an IP address share
// one subqueue.
func streamSubqueueKey(client net.Addr) string {
	b, _ := connlimit.ClientAddress(client).MarshalBinary() // which never fails
	return string(b)
}
