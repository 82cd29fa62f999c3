package transport

import (
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	probesOffTime = 10 * time.Minute // how long probes are disabled after a connection has ended while a probe was in flight
	probePool     = 2                // index of the connection pool for probes that might end a connection of other queries
)

// A probePolicy decides whether a transport may send probes over the connections of other queries. A probe is a query
// for the NS records of the root that a transport sends to find out whether a silent connection still works.
//
// Some servers close a connection when they reject a question, which may be the question of a probe. Other queries on
// that connection would then be lost.
//
// For such a server, probes use a connection of their own, and a silent connection is retired without a probe. The zero
// value permits probes. It is safe for concurrent use.
type probePolicy struct {
	probesOffUntil atomic.Int64 // time until which probes are disabled, in Unix nanoseconds
}

// disableProbes forbids probes over the connections of other queries for the next ten minutes. A probe is a query that
// shows whether a silent connection works. The server has ended a connection while a probe was in flight, so the probe
// may be the reason.
func (p *probePolicy) disableProbes() {
	p.probesOffUntil.Store(time.Now().Add(probesOffTime).UnixNano())
}

// areProbesDisabled reports whether probes over the connections of other queries are forbidden at present. A probe is a
// query that shows whether a silent connection works. Some servers close the connection on which they receive a probe.
func (p *probePolicy) areProbesDisabled() bool {
	return time.Now().UnixNano() < p.probesOffUntil.Load()
}

// poolIndex returns the index of the connection pool for q. n is the number of earlier queries with the same question
// to this server. The index is 0 for the first query (n is 0), and 1 for later ones, such as hedges and
// retransmissions.
//
// The index is 2 (probePool) if q asks for the NS records of the root while probes over the connections of other
// queries are disabled. Probes ask this question to find out whether a connection works. The server may end the
// connection because of it.
func (p *probePolicy) poolIndex(q *wire.Query, n int) int {
	if isProbeQuestion(q) && p.areProbesDisabled() {
		return probePool
	}
	return min(n, 1)
}

// isProbeQuestion reports whether q asks for the NS records of the root, as all probes of silent connections do. A
// client may ask the same question, so q need not be a probe.
func isProbeQuestion(q *wire.Query) bool {
	return q.Name == wire.RootServers.Name && q.Type == wire.RootServers.Type && q.IsStandard()
}
