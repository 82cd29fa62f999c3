package group

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Zones exports silentZones to tests.
type Zones struct{ silentZones }

// Named returns a question for the A records of name. It panics if name is invalid.
func Named(name string) *wire.Query {
	q, err := wire.NewQuery(new(dns.Msg).SetQuestion(name, dns.TypeA))
	if err != nil {
		panic(err)
	}
	return q
}

// Miss records that a question about name, sent at the given time, had no response.
func (z *Zones) Miss(name string, sent time.Time) { z.recordUnanswered(Named(name), sent, time.Now()) }

// Answer records that a question about name was answered.
func (z *Zones) Answer(name string) { z.AnswerTo(Named(name)) }

// AnswerTo records that the question q was answered.
func (z *Zones) AnswerTo(q *wire.Query) { z.recordAnswer(q) }

// Silent reports whether the server is silent about a domain that contains name.
func (z *Zones) Silent(name string) bool { return z.isSilent(Named(name)) }

// Known returns the number of recorded domains, and their maximum number.
func (z *Zones) Known() (n, most int) { return int(z.zoneCount.Load()), 2 * maxZones }

// HealthIsFree reports whether the lock of the server's health is free.
func HealthIsFree(s *Server) bool {
	free := s.health.mu.TryLock()
	if free {
		s.health.mu.Unlock()
	}
	return free
}

// Silence puts the server s in the state silent.
func Silence(s *Server) { s.health.isSilent.Store(true) }

// RTO exports rtoEstimator to tests.
type RTO struct{ rtoEstimator }

// BackOff records at the time now that a query, sent at the given time, is unanswered.
func (r *RTO) BackOff(sent, now time.Time) { r.backOff(sent, now) }

// Timeout returns the timeout of the next query to the server.
func (r *RTO) Timeout() time.Duration { return r.currentTimeout(0, true) }
