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

// probePolicy is whether a server's connections may be probed while queries wait on them. There are servers that close the connection on a question that they
// do not like, and the one of probes may be such a question: what waits on the connection with it would be lost, however well the server
// answers that. Then none goes over a connection that queries wait on, and one that is silent is only retired. The zero value
// is a server that may be probed. It is safe for concurrent use.
type probePolicy struct {
	until atomic.Int64 // when it may be probed again, Unix ns
}

// end is called when a connection has ended while a probe was under way.
func (p *probePolicy) recordConnEnd() { p.until.Store(time.Now().Add(noProbes).UnixNano()) }

// ends reports whether a probe ends the connection that it goes over.
func (p *probePolicy) endsConnections() bool { return time.Now().UnixNano() < p.until.Load() }

// lane returns the shared lane of the nth query for q: 0 is the first one.
func (p *probePolicy) laneFor(q *wire.Query, n int) int {
	if isProbe(q) && p.endsConnections() {
		return probeLane
	}
	return min(n, 1)
}

// isProbe reports whether q is the question of probes, whoever asks it.
func isProbe(q *wire.Query) bool {
	return q.Name == wire.RootServers.Name && q.Type == wire.RootServers.Type && q.Standard()
}
