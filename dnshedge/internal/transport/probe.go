package transport

import (
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	noProbes  = 10 * time.Minute // for which it is known that a server ends connections on probes
	probeLane = 2                // of probes that would end the connection of others
)

// probePolicy decides whether a server's connections may be probed while queries wait on them. Some servers close the
// connection on a question that they reject, and the question of probes may be one. Other queries on the connection
// would then be lost. In that case no probe goes over a connection with waiting queries, and a silent connection is
// only retired.
//
// The zero value allows probes. It is safe for concurrent use.
type probePolicy struct {
	until atomic.Int64 // when it may be probed again, Unix ns
}

// recordConnEnd is called when a connection has ended while a probe was under way.
func (p *probePolicy) recordConnEnd() { p.until.Store(time.Now().Add(noProbes).UnixNano()) }

// endsConnections reports whether a probe ends the connection that it goes over.
func (p *probePolicy) endsConnections() bool { return time.Now().UnixNano() < p.until.Load() }

// laneFor returns the shared lane of the nth query for q: 0 is the first one.
func (p *probePolicy) laneFor(q *wire.Query, n int) int {
	if isProbe(q) && p.endsConnections() {
		return probeLane
	}
	return min(n, 1)
}

// isProbe reports whether q has the question of probes, also if a caller asks it.
func isProbe(q *wire.Query) bool {
	return q.Name == wire.RootServers.Name && q.Type == wire.RootServers.Type && q.Standard()
}
