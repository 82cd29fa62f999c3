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

// A probePolicy decides whether a transport may send probes over connections that carry other queries. A probe is a
// query for the NS records of the root, which shows whether a silent connection works. The zero value permits probes.
// It is safe for concurrent use.
type probePolicy struct {
	// Some servers close a connection when they reject a question, and the other queries on it are lost. After an end
	// with a probe in flight, silent connections are retired without a probe until this time, in Unix nanoseconds.
	probesOffUntil atomic.Int64
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

// poolIndex returns the index of the connection pool for q: probePool for the question of a probe while probes are
// disabled, otherwise 0 if n is 0, else 1. n is the number of earlier queries with the same question to this server.
func (p *probePolicy) poolIndex(q *wire.Query, n int) int {
	if isProbeQuestion(q) && p.areProbesDisabled() {
		return probePool // the server may end a connection because of this question
	}
	return min(n, 1)
}

// isProbeQuestion reports whether q asks for the NS records of the root, as all probes of silent connections do. A
// client may ask the same question, so q need not be a probe.
func isProbeQuestion(q *wire.Query) bool {
	return q.Name == wire.RootServers.Name && q.Type == wire.RootServers.Type && q.IsStandard()
}
