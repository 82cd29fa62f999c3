package group

import (
	"hash/maphash"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
)

const (
	maxMisses        = 3                      // number of unanswered queries in a row after which a server is silent
	maxFailures      = 3                      // number of different names with a failure in a row after which a server is failing
	minProbeInterval = 500 * time.Millisecond // shortest time between two probes
	maxProbeInterval = 10 * time.Second       // longest time between two probes
)

// health records whether one server works. It is safe for concurrent use. A server is:
//
//   - silent after three unanswered queries in a row
//   - failing after failures for three different names in a row
//   - unhealthy if silent or failing
//   - down if unhealthy after a failed probe
type health struct {
	host string   // name of the server for log messages; never changes
	log  *ops.Log // never changes

	answerRate  answerRate  // recent questions that the server answered or left unanswered; has a lock of its own
	silentZones silentZones // domains about which the server is silent; has a lock of its own

	isSilent         atomic.Bool                // maxMisses queries had no response, and no response came since; stored under mu
	failureCount     atomic.Int64               // number of different names with a failure since the last success; stored under mu
	answeredQuestion atomic.Pointer[wire.Query] // a question that was answered without a failure; nil: none
	isDown           atomic.Bool                // the server is unhealthy and has failed a probe; stored under mu
	probeCount       atomic.Int64               // number of probes so far

	mu              sync.Mutex               // guards the fields below
	lastAnswer      time.Time                // time of the last response; zero: none
	rejections      rejectionSpan            // rejections since the last response
	misses          int                      // number of unanswered queries since the last response
	failedQuestions [maxFailures]*wire.Query // one question for each of the failureCount names
	probeInterval   time.Duration            // time between two probes; it grows while probes fail
	nextProbe       time.Time                // earliest time of the next probe
	nextRetry       time.Time                // earliest time at which the server may be retried while it is down (see tryBeginRetry)
	isProbing       bool                     // a probe is running
	hasFailedProbe  bool                     // the last probe failed, and no response came since
	notice          policy.ReportThrottle    // limits how often changes are logged
}

// isUnhealthy reports whether the server is silent (its last queries had no response) or failing (its last responses
// were failures). The reason may be a defect of the server, or broken names in the questions. A probe finds out which.
func (h *health) isUnhealthy() bool { return h.IsSilent() || h.isFailing() }

// isFailing reports whether the server has responded with failures for three different names (maxFailures) since it
// last answered a question without a failure.
func (h *health) isFailing() bool { return h.failureCount.Load() >= maxFailures }

// IsSilent reports whether the server is silent: the last three queries to it (maxMisses) had no response.
func (h *health) IsSilent() bool { return h.isSilent.Load() }

// IsDown reports whether the server does not work: it has failed a probe, and it is silent or has responded with
// failures for several names in a row.
func (h *health) IsDown() bool { return h.isDown.Load() }

// HasAnswered reports whether the server has ever answered a question without a failure.
func (h *health) HasAnswered() bool { return h.answeredQuestion.Load() != nil }

// HasAnsweredSince reports whether the server has sent any response after t, even a failure.
func (h *health) HasAnsweredSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastAnswer.After(t)
}

// recordAnyResponse records that the server has sent a response, even a failure. The server is then no longer silent.
func (h *health) recordAnyResponse() {
	now := time.Now()
	defer h.logChange(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.misses, h.lastAnswer, h.hasFailedProbe, h.rejections = 0, now, false, rejectionSpan{}
	h.isSilent.Store(false)
	if !h.isFailing() {
		h.isDown.Store(false)
	}
}

// rejectionLifetime is the longest time between two rejections of one series. After a longer time, a rejection starts a
// new series.
const rejectionLifetime = time.Minute

// A rejectionSpan holds the times of the first and the last rejection in a series of rejections by one server. A
// rejection is a refused or closed connection, or HTTP status 429 or 503. A DNS response of the server resets both
// times to zero.
type rejectionSpan struct{ first, last time.Time } // zero: there are none

// recordRejection records that the server has just refused or closed a connection, or asked for less load by HTTP
// status 429 or 503. The response code REFUSED is not a rejection.
func (h *health) recordRejection() {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.rejections.last) > rejectionLifetime {
		h.rejections.first = now
	}
	h.rejections.last = now
}

// refusingSince returns the time of the first rejection since the server's last response, or zero. A rejection is a
// refused or closed connection, or HTTP status 429 or 503. A rejection more than a minute after the previous one
// counts as the first.
func (h *health) refusingSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rejections.first
}

// recordResponse records a response of the server to the message q. isFailure is true for a failure, such as SERVFAIL
// or a DNSSEC validation failure. The server is then no longer silent. After failures for three different names in a
// row (maxFailures), it is failing.
func (h *health) recordResponse(q *wire.Query, isFailure bool) {
	h.silentZones.recordAnswer(q)
	h.recordAnyResponse()
	if !q.IsStandard() { // other opcodes do not show whether the server can answer questions
		return
	}
	if !isFailure {
		if h.answeredQuestion.Load() == nil || h.failureCount.Load() > 0 || h.isDown.Load() {
			h.recordSuccess(q)
		}
		return
	}
	h.mu.Lock()
	n := h.failureCount.Load()
	// Several failures for one name count once, because the name may be broken.
	if n == maxFailures || slices.ContainsFunc(h.failedQuestions[:n], func(f *wire.Query) bool { return strings.EqualFold(f.Name, q.Name) }) {
		h.mu.Unlock()
		return
	}
	h.failedQuestions[n] = q
	h.failureCount.Store(n + 1)
	if n+1 == maxFailures {
		h.nextProbe = time.Now().Add(h.probeInterval)
	}
	h.mu.Unlock()
	h.logChange(time.Now())
}

// failedQuestion returns a question that the server has failed to answer since its last success, or nil if there is
// none. As n increases, each of these questions is returned in turn. n must not be negative.
func (h *health) failedQuestion(n int64) *wire.Query {
	h.mu.Lock()
	defer h.mu.Unlock()
	if failures := h.failureCount.Load(); failures > 0 {
		return h.failedQuestions[n%failures]
	}
	return nil
}

// recordSuccess records that the server has answered the question q without a failure. The server is then neither
// failing nor down, and the time between probes is the shortest again.
func (h *health) recordSuccess(q *wire.Query) {
	h.mu.Lock()
	h.answeredQuestion.Store(q)
	h.failureCount.Store(0)
	h.isDown.Store(false)
	h.probeInterval = 0
	h.mu.Unlock()
	h.logChange(time.Now())
}

// countUnansweredQuery counts a query that the server has left unanswered. sent is the time at which the query was
// sent. After three unanswered queries in a row (maxMisses), the server is silent. It does nothing if the server has
// sent any response since then.
func (h *health) countUnansweredQuery(sent time.Time) {
	now := time.Now()
	defer h.logChange(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastAnswer.After(sent) { // the server works, only a packet was lost
		return
	}
	if h.misses++; h.misses >= maxMisses && !h.isSilent.Load() {
		h.isSilent.Store(true)
		h.isDown.Store(h.hasFailedProbe)
		h.nextProbe = now.Add(h.probeInterval)
	}
}

// tryBeginProbe reports whether a probe of the server is due at the time now and no probe is running. A probe sends
// questions that show whether the server works. After a true result, the caller must run the probe and then call
// endProbe.
func (h *health) tryBeginProbe(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := !h.isProbing && !now.Before(h.nextProbe)
	h.isProbing = h.isProbing || due
	return due
}

// tryBeginRetry reports whether a client's question may be sent to a server that is down, to find out whether it works
// again. now is the present time. After a true result, it returns false for half a second to ten seconds, the interval
// between probes.
func (h *health) tryBeginRetry(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.nextRetry) {
		return false
	}
	h.nextRetry = now.Add(max(h.probeInterval, minProbeInterval))
	return true
}

// endProbe records the end of a probe that tryBeginProbe has permitted. failed is false if the server has answered a
// question of the probe without a failure. The interval before the next probe, half a second, doubles while probes
// fail, up to ten seconds.
func (h *health) endProbe(failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isProbing = false
	if failed || h.isFailing() { // the server may answer the probe and still fail for other questions
		h.probeInterval = min(max(2*h.probeInterval, minProbeInterval), maxProbeInterval)
	} else {
		h.probeInterval = minProbeInterval
	}
	h.nextProbe = time.Now().Add(h.probeInterval)
	h.hasFailedProbe = failed
	if !failed {
		h.failureCount.Store(0)
	}
	h.isDown.Store(h.hasFailedProbe && h.isUnhealthy())
}

// logChange logs that the server has become silent or failing, or that it works again. now is the present time. It
// logs each of the two states at most once in ten seconds (policy.MinChangeInterval). The caller must not hold mu.
func (h *health) logChange(now time.Time) {
	if h.log.IsDiscarded() {
		return
	}
	h.mu.Lock()
	unhealthy, silent := h.isUnhealthy(), h.IsSilent()
	dropped, news := h.notice.Update(now, policy.MinChangeInterval, unhealthy)
	h.mu.Unlock()
	if !news {
		return
	}
	level, message := slog.LevelWarn, "upstream fails"
	switch {
	case silent:
		message = "upstream is silent"
	case !unhealthy:
		level, message = slog.LevelInfo, "upstream answers again"
	}
	attrs := []slog.Attr{slog.String("host", sanitize.CleanText(h.host))}
	if dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", dropped))
	}
	h.log.Log(level, message, attrs...)
}

// An answerRate records, for one server and by question type, which recent questions the server has answered. An
// unanswered question only counts if another server has answered it. It is safe for concurrent use.
type answerRate struct {
	mu     sync.Mutex        // guards byType
	byType [4]recentOutcomes // indexed by typeIndexes
}

// A recentOutcomes is a ring buffer with the outcomes of recent questions of one type to one server: answered or
// unanswered. Equal outcomes for the same name are stored once.
type recentOutcomes struct {
	outcomes [8]questionOutcome
	next     int // index of the element that is overwritten next
}

// A questionOutcome records whether a server has answered a question about a name.
type questionOutcome struct {
	name       string // in wire format; empty: unused element of the ring buffer
	isAnswered bool   // the server has answered the question
}

// typeIndexes has the index in answerRate.byType for each question type that is counted separately, because servers and
// middleboxes may drop queries of types that they do not support. All other types have the index 0.
var typeIndexes = map[uint16]int{dns.TypeA: 1, dns.TypeAAAA: 2, dns.TypeHTTPS: 3, dns.TypeSVCB: 3}

// recordQuestion records whether the server has answered the question q without a failure, or has left it unanswered
// (answered is false). It does nothing if the same outcome is already stored for the name. hasAnsweredMost uses the
// last eight outcomes of the question type.
func (s *answerRate) recordQuestion(q *wire.Query, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.byType[typeIndexes[q.Type]]
	if slices.ContainsFunc(r.outcomes[:], func(p questionOutcome) bool { return p.isAnswered == answered && strings.EqualFold(p.name, q.Name) }) {
		return
	}
	r.outcomes[r.next] = questionOutcome{q.Name, answered}
	r.next = (r.next + 1) % len(r.outcomes)
}

// hasAnsweredMost reports whether the server answered more than half of the recent questions that had the type of q. It
// returns false if no such question was recorded.
func (s *answerRate) hasAnsweredMost(q *wire.Query) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all, answered int
	for _, p := range s.byType[typeIndexes[q.Type]].outcomes {
		if p.name != "" {
			all++
		}
		if p.isAnswered {
			answered++
		}
	}
	return 2*answered > all
}

// silentZones records the domains about which one server is silent: the server left questions about three different
// children of the domain unanswered, with no answer about the domain in between. The zero value is ready for use. It
// is safe for concurrent use.
type silentZones struct {
	zoneCount atomic.Int32 // length of byHash, to be read without mu; stored under mu

	mu       sync.Mutex              // guards the fields below
	seed     maphash.Seed            // seed of the domain hashes
	byHash   map[uint64]*suspectZone // all recorded domains by the hash of their name; nil before the first miss
	suspects []*suspectZone          // domains with fewer than minSilentChildren misses
	silent   []*suspectZone          // domains with minSilentChildren misses
}

const (
	// maxZones is the maximum length of the list of suspect domains, and of the list of silent domains. In a full list, a
	// new domain replaces a random one. Both lists together take less than 500 KiB for each server.
	maxZones          = 1024
	minSilentChildren = 3 // number of children of a domain with unanswered questions after which the server is silent about the domain
	minZoneLabels     = 2 // least number of labels of a recorded domain; shorter domains have many servers and contain most names
)

// zoneSilenceLifetime is the time after which the silence about a domain expires, counted from the last unanswered
// question.
const zoneSilenceLifetime = 10 * time.Second

// A suspectZone records the unanswered questions about the names of one DNS domain. silentZones.mu guards it.
type suspectZone struct {
	hash           uint64                    // hash of the domain's name; the key in silentZones.byHash
	listIndex      int                       // index in silentZones.silent if isSilent is true, or else in silentZones.suspects
	missedChildren [minSilentChildren]uint64 // hashes of the children with an unanswered question since the last answer; elements 0 to misses-1 are in use
	misses         int                       // number of used elements of missedChildren
	silentSince    time.Time                 // time at which misses reached minSilentChildren; zero: not reached
	lastMiss       time.Time                 // time at which the last unanswered question was recorded
	lastAnswer     time.Time                 // time of the last answered question; zero: none since the domain was recorded
}

// isSilent reports whether the server has left questions about three different children of the domain unanswered
// (minSilentChildren), and has answered no question about the domain in between. The result stays true after the
// silence has expired (zoneSilenceLifetime).
func (z *suspectZone) isSilent() bool { return z.misses == minSilentChildren }

// An enclosingDomain is a domain that contains the name of a question, or is that name. Its child is the next smaller
// domain that contains the name: for the name a.b.example.com and the domain example.com, the child is b.example.com.
type enclosingDomain struct {
	domain uint64 // hash of the domain's name
	child  uint64 // hash of the name of the child that contains the question's name; domain if the domain is that name
	isName bool   // the domain is the question's name, and the name has more than minZoneLabels labels
}

// enclosingDomains yields the domains that contain the name of q, largest domain first, down to the name itself. The
// first one has two labels (minZoneLabels). It yields nothing for a name with fewer labels. The caller must hold mu.
func (z *silentZones) enclosingDomains(q *wire.Query) iter.Seq[enclosingDomain] {
	return func(yield func(enclosingDomain) bool) {
		var buf [wire.MaxName]byte
		name := wire.AppendLower(buf[:0], q.Name)
		var labels [wire.MaxName / 2]uint8 // offset of each label
		n := 0
		for at := 0; at < len(name)-1; at += 1 + int(name[at]) {
			labels[n] = uint8(at)
			n++
		}
		hash := func(i int) uint64 { return maphash.Bytes(z.seed, name[labels[i]:]) }
		if n < minZoneLabels {
			return
		}
		one := enclosingDomain{domain: hash(n - minZoneLabels)}
		for i := n - minZoneLabels; i >= 0; i-- {
			one.child, one.isName = one.domain, i == 0 && n > minZoneLabels
			if i > 0 {
				one.child = hash(i - 1)
			}
			if !yield(one) {
				return
			}
			one.domain = one.child
		}
	}
}

// listOf returns the list that holds s: the list of silent domains, or else the list of suspect domains. The caller
// must hold mu.
func (z *silentZones) listOf(s *suspectZone) *[]*suspectZone {
	if s.isSilent() {
		return &z.silent
	}
	return &z.suspects
}

// addZone records a domain in the table of domains, and in the list of silent or of suspect domains. If that list is
// full, it removes a random element first. The caller must hold mu.
func (z *silentZones) addZone(zone *suspectZone) {
	in := z.listOf(zone)
	if len(*in) == maxZones {
		z.removeZone((*in)[rand.IntN(maxZones)])
	}
	zone.listIndex = len(*in)
	*in = append(*in, zone)
	z.byHash[zone.hash] = zone
	z.zoneCount.Store(int32(len(z.byHash)))
}

// removeZone removes a domain from the table of recorded domains, and from the list that holds it. The caller must hold
// mu.
func (z *silentZones) removeZone(zone *suspectZone) {
	in := z.listOf(zone)
	end := len(*in) - 1
	last := (*in)[end]
	(*in)[zone.listIndex], (*in)[end] = last, nil
	last.listIndex = zone.listIndex
	*in = (*in)[:end]
	delete(z.byHash, zone.hash)
	z.zoneCount.Store(int32(len(z.byHash)))
}

// setUnansweredCount sets zone.misses, the number of children of a domain about which a question was left unanswered. At
// three (minSilentChildren), the server counts as silent about the domain. The caller must hold mu.
func (z *silentZones) setUnansweredCount(zone *suspectZone, misses int) {
	if (misses == minSilentChildren) == zone.isSilent() {
		zone.misses = misses
		return
	}
	z.removeZone(zone)
	zone.misses = misses
	z.addZone(zone)
}

// recordUnanswered records that the question q, sent at the time sent, has no response at the time now. It returns the
// earliest time since which the server has been silent about a domain that contains the name of q, or zero if there is
// none.
func (z *silentZones) recordUnanswered(q *wire.Query, sent, now time.Time) (since time.Time) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.byHash == nil {
		z.byHash, z.seed = make(map[uint64]*suspectZone), maphash.MakeSeed()
	}
	for l := range z.enclosingDomains(q) { // it is not known which of them is dead, so the question counts for each
		one := z.byHash[l.domain]
		if one == nil {
			if l.isName || !since.IsZero() { // its parent is recorded, or a domain that contains it is silent
				continue
			}
			one = &suspectZone{hash: l.domain}
			z.addZone(one)
		}
		one.lastMiss = now
		if !one.isSilent() && !one.lastAnswer.After(sent) && !slices.Contains(one.missedChildren[:one.misses], l.child) {
			one.missedChildren[one.misses] = l.child
			z.setUnansweredCount(one, one.misses+1)
			if one.isSilent() {
				one.silentSince = now
			}
		}
		if one.isSilent() && (since.IsZero() || one.silentSince.Before(since)) {
			since = one.silentSince
		}
	}
	return since
}

// recordAnswer records that the server has answered q. This ends the silence about all domains that contain the name of
// q.
func (z *silentZones) recordAnswer(q *wire.Query) {
	if z.zoneCount.Load() == 0 {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for l := range z.enclosingDomains(q) {
		one := z.byHash[l.domain]
		if one == nil {
			continue
		}
		now := time.Now()
		if one.misses == 0 && now.Sub(one.lastAnswer) >= zoneSilenceLifetime { // no query waits that long, so no miss from before the answer can follow
			z.removeZone(one)
			continue
		}
		z.setUnansweredCount(one, 0)
		one.silentSince, one.lastAnswer = time.Time{}, now
	}
}

// isSilent reports whether the server is silent about a domain that contains the name of q: questions about three
// different children of the domain were unanswered in a row. The silence expires ten seconds after the last unanswered
// question (zoneSilenceLifetime).
func (z *silentZones) isSilent(q *wire.Query) bool {
	if z.zoneCount.Load() == 0 {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.silent) == 0 {
		return false
	}
	for l := range z.enclosingDomains(q) {
		if one := z.byHash[l.domain]; one != nil && one.isSilent() && time.Since(one.lastMiss) < zoneSilenceLifetime {
			return true
		}
	}
	return false
}
