// Package debug serves an HTML page that shows the state of hedging for each latency key: delays, latencies, hedges,
// wins, denied hedges and the budget.
//
//	mux.Handle("/debug/hedge", debug.Handler(transport))
//
// The page can also show
//
//   - a client of package dnshedge, with its cache and upstreams: debug.DNS(client);
//   - a recursor: debug.Recursor(resolver);
//   - the Limiter of a server: debug.Limiter(limiter);
//   - a store of package rangeread, under a name: debug.Store("tables", store).
//
// The page reloads itself, and has no scripts and no external resources. It contains names of hosts and routes, so
// restrict access to it as to net/http/pprof.
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

// A Source provides the data of one section of the page. It is a *hedge.Transport, *hedge.Interceptor, *hedge.Hedger,
// or a result of [DNS], [Recursor], [Limiter] or [Store]. Any other type with a Snapshot method is shown like a
// Transport.
type Source interface{ Snapshot() hedge.Snapshot }

var (
	_ Source = (*hedge.Transport)(nil)
	_ Source = (*hedge.Hedger)(nil)
)

// Handler returns an HTTP handler that serves the debug page of the given sources. It only reads the sources, accepts
// GET and HEAD, and is safe for concurrent use. The caller registers it with a ServeMux. Handler panics if a source is
// nil.
//
// The page shows the 100 busiest latency keys of each source. Names are formatted as by [hedge.KeyInfo.Printable]. With
// ?refresh=N the page reloads every N seconds; the default is 5, and 0 disables reloading.
//
// With ?format=json, or with the header "Accept: application/json", the response is a [Page] in JSON with all keys.
func Handler(sources ...Source) http.Handler {
	for i, s := range sources {
		if isNil(s) {
			panic(fmt.Sprintf("debug: Handler: source %d is nil", i))
		}
	}
	return pageHandler(slices.Clone(sources))
}

// isNil reports whether x is a nil interface or contains a nil pointer.
func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// A pageHandler is the http.Handler that [Handler] returns. Its elements are the sources that the page shows.
type pageHandler []Source

// A Page is the JSON response to a request with ?format=json: the snapshots of all sources.
type Page struct {
	Time    time.Time        `json:"time"`    // time at which the page was requested
	Clients []hedge.Snapshot `json:"clients"` // snapshots of the sources without a field of their own, in the order of the sources

	DNS []observe.DNSStats `json:"dns,omitempty"` // statistics of the sources of [DNS], in the order of the sources

	Recursors []observe.RecursorStats `json:"recursors,omitempty"` // statistics of the sources of [Recursor], in the order of the sources

	Limiters []hedge.LimiterSnapshot `json:"limiters,omitempty"` // snapshots of the sources of [Limiter], in the order of the sources

	Stores []StoreStats `json:"stores,omitempty"` // statistics of the sources of [Store], in the order of the sources
}

func (h pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
		return
	}
	p := Page{Time: time.Now(), Clients: []hedge.Snapshot{}}
	for _, s := range h {
		switch s := s.(type) {
		case dnsSource:
			p.DNS = append(p.DNS, s.Stats())
		case recursorSource:
			p.Recursors = append(p.Recursors, s.resolver.Stats())
		case limiterSource:
			p.Limiters = append(p.Limiters, s.limiter.Snapshot())
		case storeSource:
			p.Stores = append(p.Stores, StoreStats{s.name, s.ranges.Stats()})
		default:
			p.Clients = append(p.Clients, s.Snapshot())
		}
	}
	var b bytes.Buffer // an error must not leave half a page
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
		err = pageTemplate.Execute(&b, newPageView(p, refresh))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(b.Bytes()) // an error means that the client has disconnected
}

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// maxKeys is the maximum number of latency keys, or of DNS upstreams, that the page shows per source.
const maxKeys = 100

// A pageView is the input of the HTML template page.html. Its numbers are already formatted as text.
type pageView struct {
	Time    string
	Refresh int // seconds until the page reloads; 0: never
	Width   int // width of the plots in pixels
	Narrow  int // width of the browser window in pixels below which each row is shown as a card
	Clients []clientView
	DNS     []dnsView

	Recursors []recursorView
	Limiters  []limiterView
	Stores    []storeView
}

// A clientView is the section of the page for one Transport, Interceptor or Hedger, with formatted numbers.
type clientView struct {
	hedge.Snapshot
	Title     string
	Totals    []labeledValue // sums over all keys, shown above the rows
	Keys      []keyView
	More      int        // number of keys that are not shown
	SlowLimit string     // share of slow calls above which hedging is paused
	Axis      []axisMark // labels of the latency axis
	Config    []namedValue
}

// A labeledValue is a total of a section: a formatted number that the page shows in a large font, with a label and a
// note. ID is the name of the number in JSON.
type labeledValue struct{ ID, Label, Value, Note string }

// A namedValue is a pair of a name and a formatted number, such as a setting or a count by reason.
type namedValue struct{ Name, Value string }

// A keyView is the row of the page for one latency key, with formatted numbers.
type keyView struct {
	hedge.KeySnapshot
	Requests, Samples, Hedges, Wins string
	P50, P90, P99, Saved            string
	Audit, Measured                 string  // verdict of the audit, and the measured effect; "" if the host is not audited
	Harmful                         bool    // true if hedging is disabled because the audit found that it harms
	Delays                          string  // hedge delays; "" if there are none
	Load, WinRate                   string  // hedges per request, and wins per hedge; "" if there are none
	LoadWidth                       float64 // width of the bar for Load, in percent; 100 if Load reaches the budget
	Budget, Scale                   string
	Paused                          string  // time until hedging resumes; "" if it is not paused
	Slow                            string  // share of slow calls
	SlowWidth                       float64 // width of the bar for Slow, in percent
	TooSlow                         bool    // true if hedging is paused, because Slow exceeds the limit
	PushBack                        string  // share of responses that pushed back; "" if it is below 0.1 %
	TooPushed                       bool    // true if hedging is paused, because PushBack exceeds the limit
	Denied                          []namedValue
	Unresumed                       string // number of bodies that were not resumed, by reason; "" if there are none
	Endpoints                       []endpointView

	Box   *latencyBox // nil if no latency is known
	Marks []axisMark  // positions of the hedge delays on the latency axis
}

// An endpointView is the row of the page for one endpoint of a latency key, with formatted numbers.
type endpointView struct {
	hedge.EndpointSnapshot
	State                              string // "ready", "ejected" or "ejected: slower"
	Calls, Hedges, Failures, Overtaken string
	Bad                                string // share of recent attempts that failed or were overtaken
}

// A latencyBox is a plot of a latency distribution: a bar from the median to the 99th percentile, with the 90th
// percentile marked. X50, X90 and X99 are the positions of the quantiles in pixels. W is the width of the bar, and W90
// is the width of its part up to the 90th percentile.
type latencyBox struct{ X50, X90, X99, W, W90 float64 }

// An axisMark is a vertical line at a latency, with a label. X is its position in pixels.
type axisMark struct {
	X     float64
	Label string
}

// plotWidth is the width of a latency plot in pixels.
const plotWidth = 200

// newPageView returns the input of the HTML template for p. The argument refresh is the number of seconds until the
// page reloads.
func newPageView(p Page, refresh int) pageView {
	v := pageView{Time: p.Time.Format("15:04:05"), Refresh: refresh, Width: plotWidth, Narrow: 1239}
	for _, s := range p.Clients {
		if hasAudit(s) {
			v.Narrow = 1439 // the column of the audit takes room
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

// renderClient returns the section for the snapshot s of a client. The snapshot was taken at the time now.
func renderClient(s hedge.Snapshot, now time.Time) clientView {
	c := clientView{Snapshot: s, Title: sanitize.CleanText(cmp.Or(s.Name, s.Protocol, "hedge")), SlowLimit: formatShare(policy.SlowLimit)}
	c.Totals = clientTotals(s)
	keys := slices.Clone(s.Keys)
	if len(keys) > maxKeys {
		slices.SortStableFunc(keys, func(a, b hedge.KeySnapshot) int { return cmp.Compare(b.Requests, a.Requests) })
		keys, c.More = keys[:maxKeys], len(keys)-maxKeys
	}
	at := newLatencyScale(keys)
	if at != nil {
		c.Axis = chooseAxisMarks(at)
	}
	for _, k := range keys {
		c.Keys = append(c.Keys, renderKey(k, s, now, at))
	}
	c.Config = configValues(s.Config)
	return c
}

// hasAudit reports whether the host of at least one key in s is audited.
func hasAudit(s hedge.Snapshot) bool {
	return slices.ContainsFunc(s.Keys, func(k hedge.KeySnapshot) bool { return k.Audit != nil })
}

// clientTotals returns the totals that the page shows above the latency keys of a client. Counters of hedge.Stats
// without a label of their own are shown under their JSON names, unless they are 0. So new counters are not forgotten.
func clientTotals(s hedge.Snapshot) []labeledValue {
	var hedges, wins, shadow, shadowWins int64
	var saved time.Duration
	for _, k := range s.Keys {
		hedges, wins, saved = hedges+k.Hedges, wins+k.Wins, saved+k.Saved
		shadow, shadowWins = shadow+k.Denied[hedge.DeniedShadow], shadowWins+k.ShadowWins
	}
	all := []labeledValue{
		{"total_requests", "requests", formatCount(s.Stats.TotalRequests), ""},
		{"hedged_requests", "requests hedged", formatCount(s.Stats.HedgedRequests), formatShareOf(s.Stats.HedgedRequests, s.Stats.TotalRequests, "of all")},
		{"hedges_sent", "hedges sent", formatCount(s.Stats.HedgesSent), formatShareOf(s.Stats.HedgesSent, s.Stats.TotalRequests, "extra load")},
		{"hedge_wins", "won by a hedge", formatCount(s.Stats.HedgeWins), formatShareOf(s.Stats.HedgeWins, s.Stats.HedgedRequests, "of those hedged")},
		{"primary_wins", "won by the primary", formatCount(s.Stats.PrimaryWins), formatShareOf(s.Stats.PrimaryWins, s.Stats.HedgedRequests, "of those hedged")},
		{"saved", "waiting saved", formatDuration(saved), "at least; estimated"},
		{"not_hedgeable", "never hedged", formatCount(s.Stats.NotHedgeable), "not safe to repeat"},
		{"warmup_requests", "warming up", formatCount(s.Stats.WarmupRequests), "too little known"},
		{"budget_exhausted", "out of budget", formatCount(s.Stats.BudgetExhausted), ""},
	}
	if hasAudit(s) {
		i := slices.IndexFunc(all, func(t labeledValue) bool { return t.ID == "saved" })
		all[i].Value, all[i].Note = "–", "not estimated: the audit of each key measures it"
		all = slices.Insert(all, 0, countAuditedHosts(s))
	}
	worded := slices.Clone(all)
	if s.Shadow {
		would := []labeledValue{
			{"shadow", "would be hedged", formatCount(shadow), formatShareOf(shadow, s.Stats.TotalRequests, "extra load")},
			{"shadow_wins", "would win", formatCount(shadowWins), formatShareOf(shadowWins, shadow, "of those")},
			{"saved", "would be saved", formatDuration(saved), "estimated"},
		}
		all = slices.Replace(all, 1, 6, would...) // the totals from hedged_requests to saved
	}
	if s.Stats.Resumes > 0 {
		all = append(all,
			labeledValue{"resumes", "rests asked for", formatCount(s.Stats.Resumes), "of bodies that stalled or broke off"},
			labeledValue{"resume_wins", "bodies resumed", formatCount(s.Stats.ResumeWins), formatShareOf(s.Stats.ResumeWins, s.Stats.Resumes, "of those")})
	}
	if s.Stats.Retries > 0 {
		all = append(all, labeledValue{"retries", "retries", formatCount(s.Stats.Retries), "of the program: see MarkRetry"})
	}
	if s.Stats.HeldBack > 0 {
		all = append(all, labeledValue{"held_back", "held back", formatCount(s.Stats.HeldBack), "by the first call: see DoDetached"})
	}
	if s.Stats.AnswersNotTaken > 0 {
		all = append(all, labeledValue{"answers_not_taken", "answers not taken", formatCount(s.Stats.AnswersNotTaken), "of hedges: see WithAnswerStatus"})
	}
	if s.Stats.HedgePanics > 0 {
		all = append(all, labeledValue{"hedge_panics", "panics", formatCount(s.Stats.HedgePanics), "of hedges"})
	}
	if s.Stats.ObserverPanics > 0 {
		all = append(all, labeledValue{"observer_panics", "observer panics", formatCount(s.Stats.ObserverPanics), "recovered"})
	}
	worded = append(worded, all...)
	stats := reflect.ValueOf(s.Stats)
	for i := range stats.NumField() {
		name := stats.Type().Field(i).Tag.Get("json")
		hasWords := slices.ContainsFunc(worded, func(t labeledValue) bool { return t.ID == name })
		if n := stats.Field(i).Int(); n > 0 && !hasWords {
			all = append(all, labeledValue{name, strings.ReplaceAll(name, "_", " "), formatCount(n), ""})
		}
	}
	return all
}

// newLatencyScale returns a function that returns the position of a latency on a logarithmic axis, in pixels from the
// left. The axis covers all latencies and hedge delays of the keys. The function is nil if no latencies are known.
func newLatencyScale(keys []hedge.KeySnapshot) func(time.Duration) float64 {
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
		return math.Round(10*plotWidth*(math.Log(float64(max(d, 1)))-lo)/(hi-lo)) / 10
	}
}

// chooseAxisMarks returns axis labels at round latencies, such as 1ms and 10ms. It chooses the densest set whose labels
// do not overlap. The function at returns the position of a latency in pixels.
func chooseAxisMarks(at func(time.Duration) float64) (all []axisMark) {
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
				if x := at(step * d); x >= 0 && x <= plotWidth {
					room = room && (len(all) == 0 || x-all[len(all)-1].X >= 38)
					all = append(all, axisMark{x, formatDuration(step * d)})
				}
			}
		}
		if room {
			break
		}
	}
	return all
}

// renderKey returns the row for the latency key k of the snapshot s, which was taken at the time now. The function at
// returns the position of a latency in pixels; it is nil if no latencies are known.
func renderKey(k hedge.KeySnapshot, s hedge.Snapshot, now time.Time, at func(time.Duration) float64) keyView {
	hedges, wins := k.Hedges, k.Wins
	if s.Shadow {
		hedges, wins = k.Denied[hedge.DeniedShadow], k.ShadowWins
	}
	v := keyView{
		KeySnapshot: k,
		Requests:    formatCount(k.Requests), Samples: formatCount(int64(k.Samples)), Hedges: formatCount(hedges), Wins: formatCount(wins),
		P50: formatDuration(k.P50), P90: formatDuration(k.P90), P99: formatDuration(k.P99), Saved: formatDuration(k.Saved),
		Load: formatShareOf(hedges, k.Requests, ""), WinRate: formatShareOf(wins, hedges, ""),
		Budget: strconv.FormatFloat(k.Budget, 'f', 1, 64),
		Slow:   formatShare(k.SlowShare), SlowWidth: 100 * min(k.SlowShare, 1), TooSlow: k.SlowShare > policy.SlowLimit,
	}
	if k.PushBackShare >= 0.001 {
		v.PushBack, v.TooPushed = formatShare(k.PushBackShare), k.PushBackShare > policy.PushStop
	}
	if a := k.Audit; a != nil {
		v.Audit, v.Measured, v.Harmful = string(a.Verdict), describeAudit(a), a.Verdict == hedge.AuditOff
	}
	v.Host, v.Route = sanitize.CleanText(k.Host), sanitize.CleanText(k.Route)
	if b := s.Config.BudgetPercent; b > 0 && k.Requests > 0 {
		v.LoadWidth = min(100, 100*100/b*float64(hedges)/float64(k.Requests)) // saved tokens may exceed 100 %
	}
	if k.BudgetScale < 1 {
		v.Scale = formatShare(k.BudgetScale)
	}
	if left := k.PausedUntil.Sub(now); left > 0 {
		v.Paused = formatDuration(left)
	}
	v.Denied = listDenied(k.Denied)
	for _, p := range k.Endpoints {
		v.Endpoints = append(v.Endpoints, renderEndpoint(p))
	}
	var unresumed []string
	for _, why := range slices.Sorted(maps.Keys(k.Unresumed)) {
		unresumed = append(unresumed, why+" "+formatCount(k.Unresumed[why]))
	}
	v.Unresumed = strings.Join(unresumed, ", ")
	var delays []string
	for _, d := range k.Delays {
		delays = append(delays, formatDuration(d))
		if at != nil {
			v.Marks = append(v.Marks, axisMark{at(d), formatDuration(d)})
		}
	}
	v.Delays = strings.Join(delays, ", ")
	if k.P50 > 0 {
		b := latencyBox{X50: at(k.P50), X90: at(k.P90), X99: at(k.P99)}
		b.W, b.W90 = max(b.X99-b.X50, 1), max(b.X90-b.X50, 1)
		v.Box = &b
	}
	return v
}

// renderEndpoint returns the row for an endpoint. The State is "ejected: slower" if the endpoint is ejected because it
// was slow, and "ejected" if it is ejected because it failed.
func renderEndpoint(p hedge.EndpointSnapshot) endpointView {
	v := endpointView{
		EndpointSnapshot: p, State: "ready",
		Calls: formatCount(p.Calls), Hedges: formatCount(p.Hedges), Failures: formatCount(p.Failures), Overtaken: formatCount(p.Overtaken), Bad: formatShare(p.BadShare),
	}
	switch v.Endpoint = sanitize.CleanText(p.Endpoint); {
	case p.Slower:
		v.State = "ejected: slower"
	case p.Ejected:
		v.State = "ejected"
	}
	return v
}

// countAuditedHosts returns a total with the number of hosts for which the audit found that hedging helps. The note has
// the number of hosts that hedging harms.
func countAuditedHosts(s hedge.Snapshot) labeledValue {
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
	return labeledValue{"audit", "hosts that gain", formatCount(int64(helped)), fmt.Sprintf("measured; %d lose, so hedging is off there", harmed)}
}

// describeAudit returns the result of an audit as text, such as "saves 38ms ± 4ms of p99, 99 % sure".
func describeAudit(a *hedge.Audit) string {
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
		sure = formatConfidence(a.Confidence) + " sure"
	}
	switch {
	case a.FailuresSaved > a.FailuresPlusMinus:
		sure = "saves " + formatShare(a.FailuresSaved) + " of the calls from failing, " + sure
	case -a.FailuresSaved > a.FailuresPlusMinus:
		sure = "makes " + formatShare(-a.FailuresSaved) + " of the calls fail, " + sure
	}
	switch {
	case a.P99 == 0:
		return sure
	case a.Saved < 0:
		return fmt.Sprintf("costs %s ± %s of p99, %s", formatDuration(-a.Saved), formatDuration(a.PlusMinus), sure)
	default:
		return fmt.Sprintf("saves %s ± %s of p99, %s", formatDuration(a.Saved), formatDuration(a.PlusMinus), sure)
	}
}

// formatConfidence formats a confidence in [0, 1] as a percentage. Above 0.99 it returns "more than 99 %", because 100
// % would be wrong.
func formatConfidence(c float64) string {
	if c > 0.99 {
		return "more than 99 %"
	}
	return formatShare(c)
}

// listDenied returns the number of denied hedges for each reason, sorted by reason. It leaves out DeniedShadow, which
// the page shows in another column.
func listDenied(by map[hedge.Reason]int64) (all []namedValue) {
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		if reason != hedge.DeniedShadow {
			all = append(all, namedValue{string(reason), formatCount(by[reason])})
		}
	}
	return all
}

// configValues returns the settings in c under their JSON names. hedge.Unset is shown as "unset".
func configValues(c hedge.Config) []namedValue {
	var all []namedValue
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		text := fmt.Sprint(v.Field(i).Interface())
		if text == "-1" || text == "-1ns" { // hedge.Unset; no other value of a setting is negative
			text = "unset"
		}
		all = append(all, namedValue{v.Type().Field(i).Tag.Get("json"), text})
	}
	return all
}

// formatCount formats n with commas as thousands separators, such as "12,345".
func formatCount(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// formatShare formats a share in [0, 1] as a percentage, with one decimal place below 10 %, such as "2.5 %".
func formatShare(f float64) string {
	digits := 0
	if f > 0 && f < 0.1 {
		digits = 1
	}
	return strconv.FormatFloat(100*f, 'f', digits, 64) + " %"
}

// formatShareOf formats n/all as a percentage, followed by the label, such as "10 % of all". It returns "" if all is 0.
func formatShareOf(n, all int64, label string) string {
	if all == 0 {
		return ""
	}
	return strings.TrimSpace(formatShare(float64(n)/float64(all)) + " " + label)
}

// formatDuration formats d with three significant digits, such as "1.23ms". From one hour on, it returns hours and
// minutes.
func formatDuration(d time.Duration) string {
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
