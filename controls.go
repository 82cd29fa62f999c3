package hedge

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
)

// controls has the exported methods by which operators observe and change a Transport, Interceptor or Hedger. It is embedded, so that its methods are
// theirs.
type controls struct {
	options  *config // as given; settings has the current Config
	settings atomic.Pointer[Config]
	updating sync.Mutex // makes the change of settings one step for the client and its policy
	client   calls.Client
	protocol string             // as in [KeyInfo]
	describe func(*KeySnapshot) // adds the fields of the protocol to a KeySnapshot; nil: there are none
}

// initControls makes the policy for the options. The error names an invalid setting, or options that contradict each other.
func (h *controls) initControls(protocol string, options *config) error {
	h.protocol, h.options = protocol, options
	if err := options.checkConflicts(); err != nil {
		return err
	}
	environment := ops.ReadEnvironment()
	h.options.shadow = h.options.shadow || environment.Shadow
	h.options.audit = h.options.audit || environment.Audit
	h.client.SetEnabled(environment.Off == "")
	settings := h.options.Config
	if err := settings.Validate(); err != nil {
		return err
	}
	if r := h.options.routes; r != nil {
		if err := r.Compile(protocol); err != nil {
			return err
		}
	}
	settings.AttemptHeader = http.CanonicalHeaderKey(settings.AttemptHeader)
	h.settings.Store(&settings)
	stats := new(Stats)
	if p := h.options.stats; p != nil {
		if *p == nil {
			*p = stats
		}
		stats = *p
	}
	h.client.Counters = (*calls.Counters)(stats)
	h.client.Log = ops.NewLog(h.options.logger, "hedge", protocol, h.options.name, &stats.ObserverPanics)
	h.client.SetSettings(settings.forCalls())
	c := h.policyConfig(&settings)
	c.Client, c.Protocol, c.Watcher = h.options.name, protocol, observers.NewNotifier(h.options.observers, h.client.Log.LogObserverPanic)
	if !h.client.Log.IsDiscarded() {
		c.Changed = h.client.Log.LogChange
	}
	h.client.Log.LogEnvironment(environment)
	if h.options.shadow && environment.Invalid == "" { // an unreadable environment has a warning of its own
		h.client.Log.Log(slog.LevelInfo, "shadow mode: hedges are counted and not sent")
	}
	h.logSmallBudgets(&settings)
	h.client.Policy = policy.New(c)
	return nil
}

// logSmallBudgets warns of budgets that are so small that a percentage was probably confused with a fraction.
func (h *controls) logSmallBudgets(settings *Config) {
	percent := settings.BudgetPercent
	if b := h.options.budget; b != nil {
		percent = b.percent
	}
	h.client.Log.WarnOfSmallBudget(settings.hedgesAllowed(), percent)
	for _, r := range h.options.routes.Registered() {
		h.client.Log.WarnOfSmallRouteBudget(r.Pattern, r.BudgetPercent)
	}
}

// policyConfig returns the configuration of the policy for settings.
func (h *controls) policyConfig(settings *Config) policy.Config {
	c := settings.policyConfig()
	c.PerHost, c.Shadow = h.options.routes != nil, h.options.shadow
	c.MaxHedgeCost = map[string]int{"http": h.options.endpoints.MaxCost(), "grpc": h.options.maxHedgeCost}[h.protocol]
	h.enableAudit(&c)
	if b := h.options.budget; b != nil {
		c.Shared, c.Share = b.bucket, b.percent/100
	}
	return c
}

// mustBeInitialized panics with a helpful text if no constructor has run.
func (h *controls) mustBeInitialized() {
	if h.client.Policy == nil {
		panic("hedge: a zero Transport, Interceptor or Hedger is not usable: New, NewInterceptor and NewHedger make one")
	}
}

// Format writes a short text that names no host, whatever the verb, such as
// hedge.Transport("shop"), with the name of [WithName]. Only %s writes what String returns.
func (h *controls) Format(f fmt.State, verb rune) {
	if verb == 's' && h.client.Policy != nil {
		_, _ = io.WriteString(f, h.String())
		return
	}
	text := "hedge." + cmp.Or(map[string]string{"http": "Transport", "grpc": "Interceptor", "func": "Hedger"}[h.protocol], "zero")
	if h.options != nil && h.options.name != "" {
		text += "(" + strconv.Quote(h.options.name) + ")"
	}
	_, _ = io.WriteString(f, text)
}

// String returns the Snapshot as JSON, for expvar.Publish.
func (h *controls) String() string { return h.Snapshot().json() }

// SetEnabled switches hedging on or off, for calls that start from now on. What
// was learned is kept, and learning goes on only while hedging is enabled. Switching
// on what was off forgets that servers pushed back.
func (h *controls) SetEnabled(on bool) {
	if on && !h.client.Enabled() {
		h.client.Policy.Resume()
	}
	if h.client.SetEnabled(on) && h.client.Log != nil {
		h.client.Log.LogSwitch(on, "SetEnabled")
	}
}

// Reset forgets what was learned of a key, and what holds its hedges back: its
// latencies, that it was slow, that its server pushed back, that its hedges did not
// win, and which endpoints are ejected; and, for all routes of a host, what [WithAudit] has found. What was counted stays,
// and so do the budgets. Host and route are those of [KeySnapshot]; an empty host stands
// for all hosts, and an empty route for all routes.
// Reset returns the number of keys that were reset. Calls under way still teach their latency.
func (h *controls) Reset(host, route string) (keys int) {
	h.mustBeInitialized()
	return h.client.Policy.Reset(host, route)
}

// Update changes the settings for calls that start from now on. What was learned
// is kept. If f leaves the settings invalid, nothing changes and the error names
// the field and the value. Updates that overlap lose no change: f is called again, with
// the newer settings, if others came in between. A nil f is an error.
func (h *controls) Update(f func(*Config)) error {
	h.mustBeInitialized()
	if f == nil {
		return errors.New("hedge: Update: func is nil")
	}
	for {
		old := h.settings.Load()
		s := *old
		f(&s)
		if err := s.Validate(); err != nil {
			return err
		}
		s.AttemptHeader = http.CanonicalHeaderKey(s.AttemptHeader)
		if s == *old || h.applySettings(old, &s) {
			h.logSettingsChange(old, &s)
			return nil
		}
	}
}

// applySettings puts s in force in place of old. It reports false if old is not in force any more.
func (h *controls) applySettings(old, s *Config) bool {
	h.updating.Lock()
	defer h.updating.Unlock()
	if !h.settings.CompareAndSwap(old, s) {
		return false
	}
	h.client.SetSettings(s.forCalls())
	h.client.Policy.SetConfig(h.policyConfig(s), time.Now())
	return true
}

// Export writes what was learned of latencies, what holds hedges back, and the verdicts of [WithAudit], for Import
// in another process or after a restart: a few hundred bytes per key and at most 64 MiB,
// the most recently used keys first.
func (h *controls) Export(w io.Writer) error {
	h.mustBeInitialized()
	if err := h.client.Policy.Export(w, time.Now()); err != nil {
		return fmt.Errorf("hedge: Export: %w", err)
	}
	return nil
}

// Import learns what another process has exported, so that calls are hedged from
// the first one on instead of the eleventh. It adds to what is known, and may be
// called several times, with the exports of several processes; what is measured
// from then on soon outweighs it. A verdict counts for a host that has none yet, and what held hedges
// back for a key that has had no call yet. Keys for
// which there is no room (see [WithMaxKeys]) are left out.
//
// Import returns an error and changes nothing if the export is damaged, was not
// written by Export, has another version, is larger than 64 MiB or is older than a day.
func (h *controls) Import(r io.Reader) error {
	h.mustBeInitialized()
	share := func(n policy.Name) float64 {
		return h.options.routes.RouteOfKey(h.protocol, n.Route).BudgetPercent / 100
	}
	keys, err := h.client.Policy.Import(r, time.Now(), share)
	if err != nil {
		return fmt.Errorf("hedge: Import: %w", err)
	}
	h.client.Log.Log(slog.LevelInfo, "imported what was learned", slog.Int("keys", keys))
	return nil
}

// Snapshot returns what is known and what was done. It is a copy: changing it
// changes nothing else.
func (h *controls) Snapshot() Snapshot {
	h.mustBeInitialized()
	s := Snapshot{Name: h.options.name, Protocol: h.protocol, Shadow: h.options.shadow, Stats: (*Stats)(h.client.Counters).Snapshot(), Config: *h.settings.Load(), Enabled: h.client.Enabled()}
	for _, v := range h.client.Policy.Snapshots() {
		s.Keys = append(s.Keys, KeySnapshot{
			Host: v.Name.Host, Route: v.Name.Route,
			Requests: v.Requests, Hedges: v.Hedges, Wins: v.Wins, ShadowWins: v.ShadowWins, Saved: v.Saved,
			Denied: v.Denied, Samples: v.Samples, P50: v.P50, P90: v.P90, P99: v.P99, Delays: v.Delays,
			Budget: v.Tokens, BudgetScale: v.BudgetScale, PausedUntil: v.PausedUntil, PushBackShare: v.PushbackShare, SlowShare: v.SlowShare, Stall: v.Stall, Audit: auditOf(v.Audit), Unresumed: v.Unresumed,
		})
		if detector, ok := v.Extension.(*endpoint.Detector); ok {
			s.Keys[len(s.Keys)-1].Endpoints = endpointSnapshots(detector)
		}
		if h.describe != nil {
			h.describe(&s.Keys[len(s.Keys)-1])
		}
	}
	return s
}

// logSettingsChange logs the settings that have changed, by their names in JSON.
func (h *controls) logSettingsChange(old, now *Config) {
	if h.client.Log.IsDiscarded() || *old == *now {
		return
	}
	var attrs []slog.Attr
	from, to := reflect.ValueOf(*old), reflect.ValueOf(*now)
	for i := range from.NumField() {
		if a, b := from.Field(i).Interface(), to.Field(i).Interface(); a != b {
			name := from.Type().Field(i).Tag.Get("json")
			attrs = append(attrs, slog.Group(name, slog.Any("from", a), slog.Any("to", b)))
		}
	}
	h.client.Log.Log(slog.LevelInfo, "settings changed", attrs...)
}

// enableAudit switches the audit on in c if the options ask for it.
func (h *controls) enableAudit(c *policy.Config) {
	if h.options.audit && !h.options.shadow {
		c.Audit, c.Wall = true, time.Now
	}
}

// auditOf returns the audit of a host; nil if it has none.
func auditOf(v Audit) *Audit {
	if v.Verdict == "" {
		return nil
	}
	return &v
}
