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

// A Resolver is a *recursor.Resolver, or anything else that has its Stats. This package
// does not import recursor, so that programs without it need not carry it.
type Resolver interface{ Stats() observe.RecursorStats }

// Recursor makes a Source of a recursor. It panics if r is nil.
func Recursor(r Resolver) Source {
	if isNil(r) {
		panic("debug: Recursor: Resolver is nil")
	}
	return recursor{r}
}

type recursor struct{ of Resolver }

// Snapshot returns what recursors have in common with others. The page shows their Stats.
func (r recursor) Snapshot() hedge.Snapshot {
	return hedge.Snapshot{Name: r.of.Stats().Name, Protocol: "recursor", Enabled: true}
}

type recursorView struct {
	Title   string
	Totals  []total
	Known   []total
	Limited []setting
	Trust   *trustView // nil: nothing is validated
}

// trustView is what validation says.
type trustView struct {
	Totals  []total
	Reasons []setting
	Anchors []setting
	Last    []bogusView
}

// bogusView is an answer that was bogus.
type bogusView struct{ Time, Name, Type, Reason, Text, Zone, Server string }

func renderRecursor(s observe.RecursorStats) recursorView {
	v := recursorView{
		Title: sanitize.CleanText(cmp.Or(s.Name, "recursor")),
		Totals: []total{
			{"questions", "questions", count(s.Questions), ""},
			{"failures", "without an answer", count(s.Failures), of(s.Failures, s.Questions, "of the questions")},
			{"local", "answered here", count(s.Local), "special names"},
			{"wire", "queries sent", count(s.Wire), perQuestion(s.Wire, s.Questions-s.Local)},
			{"tcp", "over TCP", count(s.TCP), of(s.TCP, s.Wire, "of the queries")},
			{"hedges", "hedges sent", count(s.Hedges), of(s.Hedges, s.Wire, "of the queries")},
			{"hedge_wins", "won by a hedge", count(s.HedgeWins), of(s.HedgeWins, s.Hedges, "of the hedges")},
			{"denied", "hedges denied", count(s.Denied), "out of budget"},
			{"timeouts", "timed out", count(s.Timeouts), "asked elsewhere"},
			{"failovers", "asked elsewhere", count(s.Failovers), "a server failed"},
			{"lame", "lame", count(s.Lame), "not the zone's servers"},
			{"lookups", "server names", count(s.Lookups), "looked up"},
			{"ignored", "messages ignored", count(s.Ignored), "strange, damaged, forged"},
			{"scrubbed", "not believed", count(s.Scrubbed), "records in responses"},
		},
		Known: []total{
			{"in_flight", "in flight", count(int64(s.InFlight)), "queries"},
			{"servers", "servers", count(int64(s.Servers)), "known"},
			{"resting", "resting", count(int64(s.Resting)), of(int64(s.Resting), int64(s.Servers), "of the servers")},
			{"zones", "zones", count(int64(s.Zones)), "whose servers are known"},
			{"rrsets", "RRsets", count(int64(s.RRsets)), "kept"},
			{"bytes", "memory", size(s.Bytes), of(s.Bytes, s.MaxBytes, "of "+size(s.MaxBytes))},
			{"budget", "budget", strconv.FormatFloat(s.Budget, 'f', 1, 64), "hedges"},
			{"first_contact", "first contact", duration(s.FirstContact), "then a new server is late"},
		},
	}
	for _, limit := range slices.Sorted(maps.Keys(s.Limited)) {
		v.Limited = append(v.Limited, setting{sanitize.CleanText(limit), count(s.Limited[limit])})
	}
	if s.Bogus != nil {
		v.Trust = renderTrust(s)
	}
	return v
}

func renderTrust(s observe.RecursorStats) *trustView {
	var bogus int64
	v := new(trustView)
	for _, code := range slices.Sorted(maps.Keys(s.Bogus)) {
		bogus += s.Bogus[code]
		v.Reasons = append(v.Reasons, setting{observe.ExtendedError(code), count(s.Bogus[code])})
	}
	all := s.Secure + s.Insecure + bogus
	clock := total{"clock_off", "clock off", "0s", "or not known yet"}
	switch {
	case s.ClockOff < 0:
		clock.Value, clock.Note = duration(-s.ClockOff), "slow: set the clock"
	case s.ClockOff > 0:
		clock.Value, clock.Note = duration(s.ClockOff), "fast: set the clock"
	}
	var unknown []string
	for _, tag := range s.UnknownSEP {
		unknown = append(unknown, strconv.Itoa(int(tag)))
	}
	v.Totals = []total{
		{"secure", "secure", count(s.Secure), of(s.Secure, all, "of the answers")},
		{"insecure", "insecure", count(s.Insecure), of(s.Insecure, all, "of the answers")},
		{"bogus", "bogus", count(bogus), of(bogus, all, "of the answers")},
		{"passed_over", "passed over", count(s.PassedOver), "responses, for their signatures"},
		{"synthesized", "synthesized", count(s.Synthesized), "answers, of proofs of others"},
		{"key_queries", "asked for keys", count(s.KeyQueries), "the servers of zones"},
		{"verifications", "verifications", count(s.Verifications), "weighted"},
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
		v.Anchors = append(v.Anchors, setting{strconv.Itoa(int(a.Tag)), is})
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

// perQuestion formats how many queries a question took. It returns "" if there was none.
func perQuestion(queries, questions int64) string {
	if questions <= 0 {
		return ""
	}
	return strconv.FormatFloat(float64(queries)/float64(questions), 'f', 2, 64) + " for each question"
}
