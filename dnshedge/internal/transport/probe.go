package transport

import (
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	probesOffTime = 10 * time.Minute // how long probes are disabled after one was followed by the end of its connection
	probePool     = 2                // index of the pool for probes that would end a connection of other queries
)

// A probePolicy decides whether a server's connections may be probed while queries wait on them. Some servers close the
// connection when they reject a question, and may reject the probe's. Other queries on the connection would then be
// lost. With such a server, probes use a connection of their own, and a silent connection is retired without a probe.
//
// The zero value allows probes. It is safe for concurrent use.
type probePolicy struct {
	probesOffUntil atomic.Int64 // end of the time without probes, Unix ns
}

// recordConnEnd disables probes for a while, because the server has ended a connection while a probe was in flight.
func (p *probePolicy) recordConnEnd() {
	p.probesOffUntil.Store(time.Now().Add(probesOffTime).UnixNano())
}

// endsConnections reports whether probes are disabled, because they may end the connection.
func (p *probePolicy) endsConnections() bool { return time.Now().UnixNano() < p.probesOffUntil.Load() }

// poolIndex returns the index of the pool for q. n is the number of earlier queries with the same question.
func (p *probePolicy) poolIndex(q *wire.Query, n int) int {
	if isProbe(q) && p.endsConnections() {
		return probePool
	}
	return min(n, 1)
}

// isProbe reports whether q is the question of probes, the NS of the root. A caller may ask the same question.
func isProbe(q *wire.Query) bool {
	return q.Name == wire.RootServers.Name && q.Type == wire.RootServers.Type && q.IsStandard()
}
