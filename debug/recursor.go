package debug

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A Resolver is a *recursor.Resolver, or another type with the same Stats method. The interface avoids an import of
// recursor in programs that do not use it.
type Resolver interface{ Stats() observe.RecursorStats }

// Recursor returns a [Source] that shows a recursor on the page, with the results of DNSSEC validation. It panics if r
// is nil.
func Recursor(r Resolver) Source {
	if isNil(r) {
		panic("debug: Recursor: Resolver is nil")
	}
	return recursorSource{r}
}

// A recursorSource is the Source that Recursor returns.
type recursorSource struct{ resolver Resolver }

// Snapshot implements [Source]. It returns only the name; the page shows the Stats of the recursor instead.
func (r recursorSource) Snapshot() hedge.Snapshot {
	return hedge.Snapshot{Name: r.resolver.Stats().Name, Protocol: "recursor", Enabled: true}
}

// A recursorView is the section of the page for one recursor, with formatted numbers.
type recursorView struct {
	Title   string
	Totals  []labeledValue
	Known   []labeledValue  // numbers of cached servers, zones and records, and the memory for them
	Limited []namedValue    // numbers of questions that reached a limit, by limit
	Trust   *validationView // results of DNSSEC validation; nil: validation is off
}

// A validationView is the part of a recursor's section that shows the results of DNSSEC validation.
type validationView struct {
	Totals  []labeledValue
	Reasons []namedValue // numbers of bogus answers, by extended DNS error
	Anchors []namedValue // states of the trust anchors, by key tag
	Last    []bogusView  // most recent bogus answers
}

// A bogusView is the row of the page for one answer that failed DNSSEC validation.
type bogusView struct{ Time, Name, Type, Reason, Text, Zone, Server string }

// renderRecursor returns the section for the statistics s of a recursor.
func renderRecursor(s observe.RecursorStats) recursorView {
	v := recursorView{
		Title: sanitize.CleanText(cmp.Or(s.Name, "recursor")),
		Totals: []labeledValue{
			{"questions", "questions", formatCount(s.Questions), ""},
			{"failures", "without an answer", formatCount(s.Failures), formatShareOf(s.Failures, s.Questions, "of the questions")},
			{"local", "answered here", formatCount(s.Local), "special names"},
			{"wire", "queries sent", formatCount(s.Wire), formatPerQuestion(s.Wire, s.Questions-s.Local)},
			{"tcp", "over TCP", formatCount(s.TCP), formatShareOf(s.TCP, s.Wire, "of the queries")},
			{"hedges", "hedges sent", formatCount(s.Hedges), formatShareOf(s.Hedges, s.Wire, "of the queries")},
			{"hedge_wins", "won by a hedge", formatCount(s.HedgeWins), formatShareOf(s.HedgeWins, s.Hedges, "of the hedges")},
			{"denied", "hedges denied", formatCount(s.Denied), "out of budget"},
			{"timeouts", "timed out", formatCount(s.Timeouts), "asked elsewhere"},
			{"failovers", "asked elsewhere", formatCount(s.Failovers), "a server failed"},
			{"lame", "lame", formatCount(s.Lame), "not the zone's servers"},
			{"lookups", "server names", formatCount(s.Lookups), "looked up"},
			{"ignored", "messages ignored", formatCount(s.Ignored), "strange, damaged, forged"},
			{"scrubbed", "not believed", formatCount(s.Scrubbed), "records in responses"},
		},
		Known: []labeledValue{
			{"in_flight", "in flight", formatCount(int64(s.InFlight)), "queries"},
			{"servers", "servers", formatCount(int64(s.Servers)), "known"},
			{"resting", "resting", formatCount(int64(s.Resting)), formatShareOf(int64(s.Resting), int64(s.Servers), "of the servers")},
			{"zones", "zones", formatCount(int64(s.Zones)), "whose servers are known"},
			{"rrsets", "RRsets", formatCount(int64(s.RRsets)), "kept"},
			{"bytes", "memory", formatBytes(s.Bytes), formatShareOf(s.Bytes, s.MaxBytes, "of "+formatBytes(s.MaxBytes))},
			{"budget", "budget", strconv.FormatFloat(s.Budget, 'f', 1, 64), "hedges"},
			{"first_contact", "first contact", formatDuration(s.FirstContact), "then a new server is late"},
		},
	}
	for _, limit := range slices.Sorted(maps.Keys(s.Limited)) {
		v.Limited = append(v.Limited, namedValue{sanitize.CleanText(limit), formatCount(s.Limited[limit])})
	}
	if s.Bogus != nil {
		v.Trust = renderValidation(s)
	}
	return v
}

// renderValidation returns the results of DNSSEC validation in s for the page.
func renderValidation(s observe.RecursorStats) *validationView {
	var bogus int64
	v := new(validationView)
	for _, code := range slices.Sorted(maps.Keys(s.Bogus)) {
		bogus += s.Bogus[code]
		v.Reasons = append(v.Reasons, namedValue{observe.ExtendedError(code), formatCount(s.Bogus[code])})
	}
	all := s.Secure + s.Insecure + bogus
	clock := labeledValue{"clock_off", "clock off", "0s", "or not known yet"}
	switch {
	case s.ClockOff < 0:
		clock.Value, clock.Note = formatDuration(-s.ClockOff), "slow: set the clock"
	case s.ClockOff > 0:
		clock.Value, clock.Note = formatDuration(s.ClockOff), "fast: set the clock"
	}
	var unknown []string
	for _, tag := range s.UnknownSEP {
		unknown = append(unknown, strconv.Itoa(int(tag)))
	}
	v.Totals = []labeledValue{
		{"secure", "secure", formatCount(s.Secure), formatShareOf(s.Secure, all, "of the answers")},
		{"insecure", "insecure", formatCount(s.Insecure), formatShareOf(s.Insecure, all, "of the answers")},
		{"bogus", "bogus", formatCount(bogus), formatShareOf(bogus, all, "of the answers")},
		{"passed_over", "passed over", formatCount(s.PassedOver), "responses, for their signatures"},
		{"synthesized", "synthesized", formatCount(s.Synthesized), "answers, of proofs of others"},
		{"key_queries", "asked for keys", formatCount(s.KeyQueries), "the servers of zones"},
		{"verifications", "verifications", formatCount(s.Verifications), "weighted"},
		clock,
		{"unknown_sep", "unknown keys", cmp.Or(strings.Join(unknown, ", "), "none"), "of the root: no anchor knows them"},
	}
	for _, a := range s.Anchors {
		is := "not seen"
		switch {
		case a.Signs:
			is = "signs"
		case a.Present:
			is = "present"
		}
		v.Anchors = append(v.Anchors, namedValue{strconv.Itoa(int(a.Tag)), is})
	}
	for _, b := range s.LastBogus {
		one := bogusView{
			Time: b.Time.Format("15:04:05"), Name: sanitize.CleanText(b.Name), Type: sanitize.CleanText(b.Type), Reason: sanitize.CleanText(b.Reason), Text: sanitize.CleanText(b.Text), Zone: sanitize.CleanText(b.Zone),
		}
		if b.Server.IsValid() {
			one.Server = b.Server.String()
		}
		v.Last = append(v.Last, one)
	}
	return v
}

// formatPerQuestion formats the number of queries divided by the number of questions, such as "1.25 for each question".
// It returns "" if there were no questions.
func formatPerQuestion(queries, questions int64) string {
	if questions <= 0 {
		return ""
	}
	return strconv.FormatFloat(float64(queries)/float64(questions), 'f', 2, 64) + " for each question"
}
