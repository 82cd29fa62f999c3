package group

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Zones are what a server is silent about.
type Zones struct{ silentZones }

// Named returns a question about a name.
func Named(name string) *wire.Query {
	q, err := wire.NewQuery(new(dns.Msg).SetQuestion(name, dns.TypeA))
	if err != nil {
		panic(err)
	}
	return q
}

// Miss says that a question about a name was sent at a time, and not answered.
func (z *Zones) Miss(name string, sent time.Time) { z.recordMiss(Named(name), sent, time.Now()) }

// Answer says that a question about a name was answered.
func (z *Zones) Answer(name string) { z.AnswerTo(Named(name)) }

// AnswerTo says that a question was answered.
func (z *Zones) AnswerTo(q *wire.Query) { z.recordAnswer(q) }

// Silent reports whether the server is silent about a name.
func (z *Zones) Silent(name string) bool { return z.isSilent(Named(name)) }

// Known returns how many domains are known, and the most that may be.
func (z *Zones) Known() (n, most int) { return int(z.zoneCount.Load()), 2 * maxZones }

// HealthIsFree reports whether nobody holds the lock of a server's health.
func HealthIsFree(s *Server) bool {
	free := s.health.mu.TryLock()
	if free {
		s.health.mu.Unlock()
	}
	return free
}

// Silence makes a server silent.
func Silence(s *Server) { s.health.isSilent.Store(true) }
