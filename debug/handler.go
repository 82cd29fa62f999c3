// Package debug serves a page that shows what hedging knows and does, for each
// key: delays, latencies, hedges, wins, denied hedges and the budget.
//
//	mux.Handle("/debug/hedge", debug.Handler(transport))
//
// A client of package dnshedge is shown by debug.Handler(transport, debug.DNS(client)):
// its cache, and each upstream. A recursor is shown by debug.Handler(debug.Recursor(r)). A server's Limiter is shown by debug.Handler(debug.Limiter(l)), and
// a store of package rangeread, which has no name of its own, by debug.Handler(debug.Store("tables", store)).
//
// The page reloads itself, loads nothing from elsewhere and runs no script. It
// names hosts and routes: serve it only where you would serve net/http/pprof.
package debug

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A Source is a *hedge.Transport, a *hedge.Interceptor, a *hedge.Hedger, anything
// else that has a Snapshot, or what [DNS], [Recursor], [Limiter] or [Store] returns.
type Source interface{ Snapshot() hedge.Snapshot }

var (
	_ Source = (*hedge.Transport)(nil)
	_ Source = (*hedge.Hedger)(nil)
)

// Handler returns a handler that serves the page. It only reads the sources, and panics
// if one of them is nil. The page shows the 100 busiest keys of each source, and names
// as [hedge.KeyInfo.Printable] makes them.
//
// With ?format=json, or with the header "Accept: application/json", the handler
// answers with a [Page] instead, which has all keys. With ?refresh=N the page
// reloads itself every N seconds; the default is 5, and 0 means never.
//
// The handler answers GET and HEAD; it may be used by many requests at once.
// Handler does not register it anywhere.
func Handler(sources ...Source) http.Handler {
	for i, s := range sources {
		if isNil(s) {
			panic(fmt.Sprintf("debug: Handler: source %d is nil", i))
		}
	}
	return handler(slices.Clone(sources))
}

func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

type handler []Source

// A Page is the answer to ?format=json.
type Page struct {
	Time    time.Time        `json:"time"`    // when the snapshots were taken
	Clients []hedge.Snapshot `json:"clients"` // one for each source but those of [DNS], [Recursor], [Limiter] and [Store], in their order

	DNS []observe.DNSStats `json:"dns,omitempty"` // one for each source of [DNS], in their order

	Recursors []observe.RecursorStats `json:"recursors,omitempty"` // one for each source of [Recursor], in their order

	Limiters []hedge.LimiterSnapshot `json:"limiters,omitempty"` // one for each source of [Limiter], in their order

	Stores []StoreStats `json:"stores,omitempty"` // one for each source of [Store], in their order
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	p := Page{Time: time.Now(), Clients: []hedge.Snapshot{}}
	for _, s := range h {
		switch s := s.(type) {
		case dns:
			p.DNS = append(p.DNS, s.Stats())
		case recursor:
			p.Recursors = append(p.Recursors, s.of.Stats())
		case limiter:
			p.Limiters = append(p.Limiters, s.of.Snapshot())
		case store:
			p.Stores = append(p.Stores, StoreStats{s.name, s.of.Stats()})
		default:
			p.Clients = append(p.Clients, s.Snapshot())
		}
	}
	var b bytes.Buffer // so that no half of a page is sent if there is an error
	var err error
	header := w.Header()
	if r.FormValue("format") == "json" || r.Header.Get("Accept") == "application/json" {
		header.Set("Content-Type", "application/json; charset=utf-8")
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		err = e.Encode(p)
	} else {
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'")
		refresh := 5
		if n, err := strconv.Atoi(r.FormValue("refresh")); err == nil && n >= 0 {
			refresh = n
		}
		err = page.Execute(&b, render(p, refresh))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
}

//go:embed page.html
var source string

var page = template.Must(template.New("page").Parse(source))

// maxKeys is the number of keys of one source that the page shows at most.
const maxKeys = 100

// view is the data of the template. Its numbers are formatted already.
type view struct {
	Time    string
	Refresh int
	Width   int // of the plots
	Narrow  int // pixels of a window in which the table has no room
	Clients []client
	DNS     []dnsClient

	Recursors []recursorView
	Limiters  []limiterView
	Stores    []storeView
}

type client struct {
	hedge.Snapshot
	Title     string
	Totals    []total
	Keys      []key
	More      int    // keys that are not shown
	SlowLimit string // the slow share above which no hedge starts
	Axis      []mark
	Config    []setting
}

// total is a number in large type, with its name and a note.
type total struct{ ID, Label, Value, Note string }

type setting struct{ Name, Value string }

type key struct {
	hedge.KeySnapshot
	Requests, Samples, Hedges, Wins string
	P50, P90, P99, Saved            string
	Audit, Measured                 string // the verdict, and what it rests on; "" if the host is not audited
	Harmful                         bool
	Delays                          string // "" if there is none
	Load, WinRate                   string // hedges per request, wins per hedge; "" if there are none
	LoadWidth                       float64
	Budget, Scale                   string
	Paused                          string // for how much longer; "" if it is not paused
	Slow                            string
	SlowWidth                       float64
	TooSlow                         bool   // for a hedge
	PushBack                        string // the share of answers that pushed back; "" if it is next to nothing
	TooPushed                       bool   // for a hedge
	Denied                          []setting
	Unresumed                       string // bodies, by reason; "" if there are none
	Endpoints                       []endpoint

	Box   *box // nil if no latency is known
	Marks []mark
}

// endpoint is an endpoint of the calls of a key.
type endpoint struct {
	hedge.EndpointSnapshot
	State                              string
	Calls, Hedges, Failures, Overtaken string
	Bad                                string // the share of the last attempts that failed or were overtaken
}

// box is the span from the median to the 99th percentile.
type box struct{ X50, X90, X99, W, W90 float64 }

// mark is a line across the latency axis.
type mark struct {
	X     float64
	Label string
}

// width is the width of the latency plots in pixels.
const width = 200

func render(p Page, refresh int) view {
	v := view{Time: p.Time.Format("15:04:05"), Refresh: refresh, Width: width, Narrow: 1239}
	for _, s := range p.Clients {
		if audited(s) {
			v.Narrow = 1439 // what an audit measures takes the room of the names
		}
		v.Clients = append(v.Clients, renderClient(s, p.Time))
	}
	for _, s := range p.DNS {
		v.DNS = append(v.DNS, renderDNS(s))
	}
	for _, s := range p.Recursors {
		v.Recursors = append(v.Recursors, renderRecursor(s))
	}
	for _, s := range p.Limiters {
		v.Limiters = append(v.Limiters, renderLimiter(s))
	}
	for _, s := range p.Stores {
		v.Stores = append(v.Stores, renderStore(s))
	}
	return v
}

func renderClient(s hedge.Snapshot, now time.Time) client {
	c := client{Snapshot: s, Title: sanitize.CleanText(cmp.Or(s.Name, s.Protocol, "hedge")), SlowLimit: share(policy.SlowLimit)}
	c.Totals = totals(s)
	keys := slices.Clone(s.Keys)
	if len(keys) > maxKeys {
		slices.SortStableFunc(keys, func(a, b hedge.KeySnapshot) int { return cmp.Compare(b.Requests, a.Requests) })
		keys, c.More = keys[:maxKeys], len(keys)-maxKeys
	}
	at := axis(keys)
	if at != nil {
		c.Axis = marks(at)
	}
	for _, k := range keys {
		c.Keys = append(c.Keys, renderKey(k, s, now, at))
	}
	c.Config = settings(s.Config)
	return c
}

// audited reports whether a client measures what hedging does.
func audited(s hedge.Snapshot) bool {
	return slices.ContainsFunc(s.Keys, func(k hedge.KeySnapshot) bool { return k.Audit != nil })
}

// totals returns the numbers of a client. One of its Stats that has no words here is shown by
// its name in JSON, unless it is 0.
func totals(s hedge.Snapshot) []total {
	var hedges, wins, shadow, shadowWins int64
	var saved time.Duration
	for _, k := range s.Keys {
		hedges, wins, saved = hedges+k.Hedges, wins+k.Wins, saved+k.Saved
		shadow, shadowWins = shadow+k.Denied[hedge.DeniedShadow], shadowWins+k.ShadowWins
	}
	all := []total{
		{"total_requests", "requests", count(s.Stats.TotalRequests), ""},
		{"hedged_requests", "requests hedged", count(s.Stats.HedgedRequests), of(s.Stats.HedgedRequests, s.Stats.TotalRequests, "of all")},
		{"hedges_sent", "hedges sent", count(s.Stats.HedgesSent), of(s.Stats.HedgesSent, s.Stats.TotalRequests, "extra load")},
		{"hedge_wins", "won by a hedge", count(s.Stats.HedgeWins), of(s.Stats.HedgeWins, s.Stats.HedgedRequests, "of those hedged")},
		{"primary_wins", "won by the primary", count(s.Stats.PrimaryWins), of(s.Stats.PrimaryWins, s.Stats.HedgedRequests, "of those hedged")},
		{"saved", "waiting saved", duration(saved), "at least; estimated"},
		{"not_hedgeable", "never hedged", count(s.Stats.NotHedgeable), "not safe to repeat"},
		{"warmup_requests", "warming up", count(s.Stats.WarmupRequests), "too little known"},
		{"budget_exhausted", "out of budget", count(s.Stats.BudgetExhausted), ""},
	}
	if audited(s) {
		i := slices.IndexFunc(all, func(t total) bool { return t.ID == "saved" })
		all[i].Value, all[i].Note = "–", "not estimated: the audit of each key measures it"
		all = slices.Insert(all, 0, auditTotal(s))
	}
	worded := slices.Clone(all)
	if s.Shadow {
		would := []total{
			{"shadow", "would be hedged", count(shadow), of(shadow, s.Stats.TotalRequests, "extra load")},
			{"shadow_wins", "would win", count(shadowWins), of(shadowWins, shadow, "of those")},
			{"saved", "would be saved", duration(saved), "estimated"},
		}
		all = slices.Replace(all, 1, 6, would...) // the totals from hedged_requests to saved
	}
	if s.Stats.Resumes > 0 {
		all = append(all,
			total{"resumes", "rests asked for", count(s.Stats.Resumes), "of bodies that stalled"},
			total{"resume_wins", "bodies resumed", count(s.Stats.ResumeWins), of(s.Stats.ResumeWins, s.Stats.Resumes, "of those")})
	}
	if s.Stats.HeldBack > 0 {
		all = append(all, total{"held_back", "held back", count(s.Stats.HeldBack), "by the first call: see DoDetached"})
	}
	if s.Stats.AnswersNotTaken > 0 {
		all = append(all, total{"answers_not_taken", "answers not taken", count(s.Stats.AnswersNotTaken), "of hedges: see WithAnswerStatus"})
	}
	if s.Stats.HedgePanics > 0 {
		all = append(all, total{"hedge_panics", "panics", count(s.Stats.HedgePanics), "of hedges"})
	}
	if s.Stats.ObserverPanics > 0 {
		all = append(all, total{"observer_panics", "observer panics", count(s.Stats.ObserverPanics), "recovered"})
	}
	worded = append(worded, all...)
	stats := reflect.ValueOf(s.Stats)
	for i := range stats.NumField() {
		name := stats.Type().Field(i).Tag.Get("json")
		hasWords := slices.ContainsFunc(worded, func(t total) bool { return t.ID == name })
		if n := stats.Field(i).Int(); n > 0 && !hasWords {
			all = append(all, total{name, strings.ReplaceAll(name, "_", " "), count(n), ""})
		}
	}
	return all
}

// axis returns the function that maps a latency to its position on a logarithmic axis
// from 0 to width, which has room for all latencies and delays of the keys. It
// returns nil if the keys have no latencies.
func axis(keys []hedge.KeySnapshot) func(time.Duration) float64 {
	least, most := time.Duration(math.MaxInt64), time.Duration(0)
	for _, k := range keys {
		if k.P50 > 0 {
			least, most = min(least, k.P50), max(most, k.P99)
			for _, d := range k.Delays {
				most = max(most, d)
			}
		}
	}
	if most == 0 {
		return nil
	}
	lo, hi := math.Log(float64(least)/1.5), math.Log(float64(most)*1.5)
	return func(d time.Duration) float64 {
		return math.Round(10*width*(math.Log(float64(max(d, 1)))-lo)/(hi-lo)) / 10
	}
}

// marks returns round numbers on the axis, as many as there is room for.
func marks(at func(time.Duration) float64) (all []mark) {
	for _, ruler := range []struct {
		factor time.Duration
		steps  []time.Duration
	}{
		{10, []time.Duration{1, 2, 3, 5, 7}},
		{10, []time.Duration{1, 2, 5}},
		{10, []time.Duration{1, 3}},
		{10, []time.Duration{1}},
		{1000, []time.Duration{1}},
	} {
		all = nil
		room := true
		for d := time.Microsecond; d <= 1000*time.Second; d *= ruler.factor {
			for _, step := range ruler.steps {
				if x := at(step * d); x >= 0 && x <= width {
					room = room && (len(all) == 0 || x-all[len(all)-1].X >= 38)
					all = append(all, mark{x, duration(step * d)})
				}
			}
		}
		if room {
			break
		}
	}
	return all
}

func renderKey(k hedge.KeySnapshot, s hedge.Snapshot, now time.Time, at func(time.Duration) float64) key {
	hedges, wins := k.Hedges, k.Wins
	if s.Shadow {
		hedges, wins = k.Denied[hedge.DeniedShadow], k.ShadowWins
	}
	v := key{
		KeySnapshot: k,
		Requests:    count(k.Requests), Samples: count(int64(k.Samples)), Hedges: count(hedges), Wins: count(wins),
		P50: duration(k.P50), P90: duration(k.P90), P99: duration(k.P99), Saved: duration(k.Saved),
		Load: of(hedges, k.Requests, ""), WinRate: of(wins, hedges, ""),
		Budget: strconv.FormatFloat(k.Budget, 'f', 1, 64),
		Slow:   share(k.SlowShare), SlowWidth: 100 * min(k.SlowShare, 1), TooSlow: k.SlowShare > policy.SlowLimit,
	}
	if k.PushBackShare >= 0.001 {
		v.PushBack, v.TooPushed = share(k.PushBackShare), k.PushBackShare > policy.PushStop
	}
	if a := k.Audit; a != nil {
		v.Audit, v.Measured, v.Harmful = string(a.Verdict), measured(a), a.Verdict == hedge.AuditOff
	}
	v.Host, v.Route = sanitize.CleanText(k.Host), sanitize.CleanText(k.Route)
	if b := s.Config.BudgetPercent; b > 0 && k.Requests > 0 {
		v.LoadWidth = min(100, 100*100/b*float64(hedges)/float64(k.Requests)) // a budget that was saved up may exceed it
	}
	if k.BudgetScale < 1 {
		v.Scale = share(k.BudgetScale)
	}
	if left := k.PausedUntil.Sub(now); left > 0 {
		v.Paused = duration(left)
	}
	v.Denied = denied(k.Denied)
	for _, p := range k.Endpoints {
		v.Endpoints = append(v.Endpoints, renderEndpoint(p))
	}
	var unresumed []string
	for _, why := range slices.Sorted(maps.Keys(k.Unresumed)) {
		unresumed = append(unresumed, why+" "+count(k.Unresumed[why]))
	}
	v.Unresumed = strings.Join(unresumed, ", ")
	var delays []string
	for _, d := range k.Delays {
		delays = append(delays, duration(d))
		if at != nil {
			v.Marks = append(v.Marks, mark{at(d), duration(d)})
		}
	}
	v.Delays = strings.Join(delays, ", ")
	if k.P50 > 0 {
		b := box{X50: at(k.P50), X90: at(k.P90), X99: at(k.P99)}
		b.W, b.W90 = max(b.X99-b.X50, 1), max(b.X90-b.X50, 1)
		v.Box = &b
	}
	return v
}

func renderEndpoint(p hedge.EndpointSnapshot) endpoint {
	v := endpoint{
		EndpointSnapshot: p, State: "ready",
		Calls: count(p.Calls), Hedges: count(p.Hedges), Failures: count(p.Failures), Overtaken: count(p.Overtaken), Bad: share(p.BadShare),
	}
	switch v.Endpoint = sanitize.CleanText(p.Endpoint); {
	case p.Slower:
		v.State = "ejected: slower"
	case p.Ejected:
		v.State = "ejected"
	}
	return v
}

// auditTotal returns for how many hosts hedging was measured to help.
func auditTotal(s hedge.Snapshot) total {
	verdicts := make(map[hedge.Verdict]map[string]bool) // the hosts of each
	for _, k := range s.Keys {
		if k.Audit != nil {
			if verdicts[k.Audit.Verdict] == nil {
				verdicts[k.Audit.Verdict] = make(map[string]bool)
			}
			verdicts[k.Audit.Verdict][k.Host] = true
		}
	}
	helped, harmed := len(verdicts[hedge.AuditOn]), len(verdicts[hedge.AuditOff])
	return total{"audit", "hosts that gain", count(int64(helped)), fmt.Sprintf("measured; %d lose, so hedging is off there", harmed)}
}

// measured says what an audit has found, such as "saves 38ms ± 4ms of p99, 99 % sure".
func measured(a *hedge.Audit) string {
	var sure string
	switch {
	case a.Pairs < 2:
		return "measuring"
	case a.Verdict == hedge.AuditSame:
		sure = "no difference found"
	case a.Verdict == hedge.AuditUnclear:
		sure = "calls take too long to tell"
	case a.Verdict == hedge.AuditTrying:
		sure = "not sure yet"
	default:
		sure = confidence(a.Confidence) + " sure"
	}
	switch {
	case a.FailuresSaved > a.FailuresPlusMinus:
		sure = "saves " + share(a.FailuresSaved) + " of the calls from failing, " + sure
	case -a.FailuresSaved > a.FailuresPlusMinus:
		sure = "makes " + share(-a.FailuresSaved) + " of the calls fail, " + sure
	}
	switch {
	case a.P99 == 0:
		return sure
	case a.Saved < 0:
		return fmt.Sprintf("costs %s ± %s of p99, %s", duration(-a.Saved), duration(a.PlusMinus), sure)
	default:
		return fmt.Sprintf("saves %s ± %s of p99, %s", duration(a.Saved), duration(a.PlusMinus), sure)
	}
}

// confidence writes a confidence, which is never whole.
func confidence(c float64) string {
	if c > 0.99 {
		return "more than 99 %"
	}
	return share(c)
}

// denied lists the reasons but one: shadow has a column of its own.
func denied(by map[hedge.Reason]int64) (all []setting) {
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		if reason != hedge.DeniedShadow {
			all = append(all, setting{string(reason), count(by[reason])})
		}
	}
	return all
}

// settings lists the fields of a Config by their names in JSON.
func settings(c hedge.Config) []setting {
	var all []setting
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		text := fmt.Sprint(v.Field(i).Interface())
		if text == "-1" || text == "-1ns" { // hedge.Unset; no other value of a setting is negative
			text = "unset"
		}
		all = append(all, setting{v.Type().Field(i).Tag.Get("json"), text})
	}
	return all
}

// count formats n with commas.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// share formats a share of 1 as a percentage.
func share(f float64) string {
	digits := 0
	if f > 0 && f < 0.1 {
		digits = 1
	}
	return strconv.FormatFloat(100*f, 'f', digits, 64) + " %"
}

// of formats n as a percentage of all, with what behind it. It returns "" if all is 0.
func of(n, all int64, what string) string {
	if all == 0 {
		return ""
	}
	return strings.TrimSpace(share(float64(n)/float64(all)) + " " + what)
}

// duration formats d with three digits; from an hour on, with hours and minutes.
func duration(d time.Duration) string {
	switch {
	case d >= 100*time.Hour:
		return strings.TrimSuffix(d.Round(time.Hour).String(), "0m0s")
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
