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
	"weak"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// controls implements the methods by which a program observes and changes a Transport, Interceptor or Hedger at run
// time, such as Snapshot and Update. These types embed controls to export the methods. It is safe for concurrent use.
type controls struct {
	options  *constructorOptions    // options of the constructor; its Config is the initial one, and settings holds the current one
	settings atomic.Pointer[Config] // current settings, which follow from layers
	updating sync.Mutex             // guards layers, and is held while settings are copied to client and its policy
	layers   settingLayers          // settings of each source, such as Update
	client   calls.Client           // state that all calls of the client share
	protocol string                 // "http", "grpc" or "func"; "": no constructor has made the client
	describe func(*KeySnapshot)     // adds the fields of a protocol to a KeySnapshot; nil: there are none
}

// initControls initializes h for a protocol ("http", "grpc" or "func"): it validates the options, reads the environment
// variables, and creates the policy. The error names an invalid setting or contradicting options.
func (h *controls) initControls(protocol string, options *constructorOptions) error {
	h.protocol, h.options = protocol, options
	if err := options.checkConflicts(); err != nil {
		return err
	}
	if err := options.Config.Validate(); err != nil {
		return err
	}
	environment := ops.ReadEnvironment(options.budget == nil)
	h.layers = settingLayers{environment: &environment, program: options.Config, programMode: options.mode(), budget: options.budget}
	settings, err := h.layers.config()
	if err != nil {
		return err
	}
	if r := h.options.routes; r != nil {
		if err := r.Compile(protocol); err != nil {
			return err
		}
	}
	h.client.SetOff(calls.OffByProgram, environment.Off != "")
	h.settings.Store(&settings)
	h.initLog()
	h.client.SetSettings(h.callSettings(&settings))
	c := h.policyConfig(&settings)
	c.Client, c.Protocol, c.Notifier = h.options.name, protocol, observers.NewNotifier(h.options.observers, h.client.Log.LogObserverPanic)
	if !h.client.Log.IsDiscarded() {
		c.Changed = h.client.Log.LogChange
	}
	h.client.Log.LogEnvironment(environment)
	if c.Shadow && environment.Invalid == nil { // an unreadable environment has a warning of its own
		h.client.Log.Log(slog.LevelInfo, "shadow mode: hedges are counted and not sent")
	}
	h.logSmallBudgets(&settings)
	h.client.Policy = policy.New(c)
	return nil
}

// initLog creates the counters and the log of the client, which is a part of initControls.
func (h *controls) initLog() {
	stats := new(Stats)
	if p := h.options.stats; p != nil {
		if *p == nil {
			*p = stats
		}
		stats = *p
	}
	h.client.Counters = (*calls.Counters)(stats)
	h.client.Log = ops.NewLog(h.options.logger, "hedge", h.protocol, h.options.name, &stats.ObserverPanics)
}

// reportClient passes the state of the client to its observers. It must be called when h is completely initialized.
func (h *controls) reportClient() {
	client := weak.Make(h)
	h.client.Policy.ReportClient(func() ([]observe.KeyState, bool) {
		h := client.Value()
		if h == nil {
			return nil, false
		}
		return h.keyStates(), true
	})
}

// keyStates returns the states of all latency keys with calls, for observers.
func (h *controls) keyStates() (all []observe.KeyState) {
	for k := range h.client.Policy.AllKeys() {
		if !k.HasCalls() {
			continue
		}
		s := k.State()
		s.Delay = h.nextDelay(k, s.Delay)
		if detector, ok := k.Extension.Load().(*endpoint.Detector); ok {
			for _, e := range detector.Snapshots() {
				state := observe.EndpointState{Endpoint: e.Name}
				if e.Ejected {
					state.Ejected = 1
				}
				s.Endpoints = append(s.Endpoints, state)
			}
		}
		all = append(all, s)
	}
	return all
}

// nextDelay returns the delay of the first hedge of the next call with the key k. It is 0 if the call will not be hedged. The
// argument learned is the learned delay, or 0 if it is unknown.
func (h *controls) nextDelay(k *policy.Key, learned time.Duration) time.Duration {
	s := KeySnapshot{Host: k.Name.Host, Route: k.Name.Route}
	if learned > 0 {
		s.Delays = []time.Duration{learned}
	}
	h.describeKey(&s)
	if len(s.Delays) == 0 || !h.client.Enabled() {
		return 0
	}
	return s.Delays[0]
}

// describeKey adds the fields of a protocol to k, and replaces the learned Delays by the fixed delay of a route or by the delays
// of a service config.
func (h *controls) describeKey(k *KeySnapshot) {
	if h.describe != nil {
		h.describe(k)
	}
	if d := h.options.routes.RouteOfKey(h.protocol, k.Route).Delay; d > 0 && k.Policy == "" {
		k.Delays = policy.NewFixedSchedule(d, h.client.Policy.Config().MaxHedges).Delays
	}
}

// logSmallBudgets logs a warning for a very small budget, because its percentage was probably given as a fraction, such
// as 0.1 in place of 10.
func (h *controls) logSmallBudgets(settings *Config) {
	h.client.Log.WarnOfSmallBudget(settings.hedgesAllowed(), settings.BudgetPercent)
	for _, r := range h.options.routes.Registered() {
		h.client.Log.WarnOfSmallRouteBudget(r.Pattern, r.BudgetPercent)
	}
}

// callSettings returns the settings that calls need. They follow from the given settings and from the file with settings. The
// caller must hold updating.
func (h *controls) callSettings(settings *Config) calls.Settings {
	s := settings.callSettings()
	switch h.protocol {
	case "http":
		s.ExcludesRequest = h.layers.file.ExcludesRequest
	case "grpc":
		s.ExcludesMethod = h.layers.file.ExcludesMethod
	}
	return s
}

// policyConfig returns the configuration of the client's policy engine. It follows from the given settings, from the current
// mode and from the options of the constructor. The caller must hold updating.
func (h *controls) policyConfig(settings *Config) policy.Config {
	c, mode := settings.policyConfig(), h.layers.mode()
	c.Shadow, c.Audit, c.Wall = mode == ops.ModeShadow, mode == ops.ModeAudit, time.Now
	c.PerHost = h.options.routes != nil
	c.MaxHedgeCost = map[string]int{"http": h.options.endpoints.MaxCost(), "grpc": h.options.maxHedgeCost}[h.protocol]
	if b := h.layers.budget; b != nil {
		c.Shared = b.bucket
	}
	if c.Share <= 0 {
		c.MaxHedges = 0
	}
	return c
}

// mustBeInitialized panics if h belongs to a zero Transport, Interceptor or Hedger, which no constructor has made.
func (h *controls) mustBeInitialized() {
	if h.client.Policy == nil {
		panic("hedge: a zero Transport, Interceptor or Hedger is not usable: New, NewInterceptor and NewHedger make one")
	}
}

// Format implements [fmt.Formatter], so that printing a client shows no host names. It writes the type and the name of
// [WithName], such as hedge.Transport("shop"). Only the verb %s writes the result of String, which contains host names.
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

// String returns the Snapshot as JSON, so that the client can be passed to expvar.Publish.
func (h *controls) String() string { return h.Snapshot().json() }

// SetEnabled enables or disables hedging for calls that start afterwards. While hedging is disabled, learned latencies
// are kept, but no new latencies are measured. If hedging was disabled, SetEnabled(true) also ends pauses of hedging
// that servers asked for before.
//
// While a file of package steering disables hedging, SetEnabled(true) has no effect until the file no longer does.
func (h *controls) SetEnabled(on bool) {
	if on && !h.client.Enabled() {
		h.client.Policy.ClearPushback()
	}
	switch changed := h.client.SetOff(calls.OffByProgram, !on); {
	case h.client.Log == nil:
	case changed:
		h.client.Log.LogSwitch(on, "SetEnabled")
	case on && !h.client.Enabled():
		h.client.Log.LogFixedSettings("SetEnabled", map[string]string{"disabled": "file"})
	}
}

// Reset discards the learned state of latency keys: latencies, pauses of hedging because of slow calls or pushback,
// reduced budgets, and ejected endpoints. It also discards the audit of the host. Counters and budget tokens are kept.
//
// The arguments select keys by the fields Host and Route of [KeySnapshot]. An empty host selects all hosts, and an
// empty route all routes. Reset returns the number of reset keys. Calls in flight still record their latency.
func (h *controls) Reset(host, route string) (keys int) {
	h.mustBeInitialized()
	return h.client.Policy.Reset(host, route)
}

// Update changes the settings for calls that start afterwards: f receives a copy of the current settings and changes
// it. Learned latencies are kept. If the changed settings are invalid, or f is nil, Update changes nothing and returns
// an error. The error names the field and the value.
//
// Update does not change a setting that [WithBudget], HEDGE_BUDGET_PERCENT or a file of package steering fixes. [WithLogger] logs each such
// setting. It is not an error, and the other settings are changed. They must also be valid without the file, so that its
// settings can be removed at any time.
//
// Concurrent updates are not lost: if the settings have changed while f ran, f is called again with the new settings.
// So f may be called several times.
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
		if s == *old {
			return nil
		}
		now, fixed, err := h.updateProgram(old, &s)
		if err != nil {
			return err
		}
		if now != nil {
			h.logSettingsChange(old, now)
			h.client.Log.LogFixedSettings("Update", fixed)
			return nil
		}
	}
}

// updateProgram changes the settings of the program from old, the current settings, to s, and returns the new current settings.
// It skips settings that a source of higher precedence fixes, and returns their JSON names with the names of these sources.
//
// If a concurrent update has already replaced old, nothing changes and now is nil. If the result is invalid, with or without
// the settings of the file, nothing changes and updateProgram returns an error.
func (h *controls) updateProgram(old, s *Config) (now *Config, fixed map[string]string, err error) {
	h.updating.Lock()
	defer h.updating.Unlock()
	if h.settings.Load() != old {
		return nil, nil, nil
	}
	layers := h.layers
	fixed = layers.changeProgram(old, s)
	now = new(Config)
	if *now, err = layers.config(); err != nil {
		return nil, nil, err
	}
	if err := layers.program.Validate(); err != nil { // otherwise the file could not be changed or removed any more
		return nil, nil, fmt.Errorf("%w, without the file of package steering", err)
	}
	h.replaceLayers(&layers, now)
	return h.settings.Load(), fixed, nil
}

// replaceLayers makes layers the settings of all sources, and applies the settings that follow from them: the result of
// layers.config. The caller must hold updating.
//
// A call that starts during the change is not hedged if neither the earlier nor the next override file allows it: shadow mode,
// in which hedges are only counted, begins before the exclusions of the earlier file end, and ends after those of the next
// file begin.
func (h *controls) replaceLayers(layers *settingLayers, settings *Config) {
	old, oldMode, mode := h.settings.Load(), h.layers.mode(), layers.mode()
	h.layers = *layers
	if mode != ops.ModeShadow {
		h.client.SetSettings(h.callSettings(settings))
	}
	if *settings != *old || mode != oldMode {
		h.settings.Store(settings)
		h.client.Policy.SetConfig(h.policyConfig(settings), time.Now())
	}
	if mode == ops.ModeShadow {
		h.client.SetSettings(h.callSettings(settings))
	}
}

// Export writes learned latencies, pauses of hedging, and verdicts of [WithAudit] to w. Import can load them after a
// restart, or in another process. It writes a few hundred bytes per key, the most recently used keys first, and at most
// 64 MiB. It returns the error of w.
func (h *controls) Export(w io.Writer) error {
	h.mustBeInitialized()
	if err := h.client.Policy.Export(w, time.Now()); err != nil {
		return fmt.Errorf("hedge: Export: %w", err)
	}
	return nil
}

// Import loads the output of Export, so that calls are hedged at once, without waiting for ten measured calls of
// their key. It may be called several times with exports of different processes. Imported latencies are added to the
// measured latencies, and soon outweighed by new measurements.
//
// A verdict is only imported for a host without a verdict, and a pause only for a key without calls. Keys beyond the
// limit of [WithMaxKeys] are skipped.
//
// Import returns an error, and changes nothing, if the data is damaged or was not written by Export. The same applies
// if the export has another version, is larger than 64 MiB, or is older than a day.
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

// Snapshot returns a copy of the settings, the counters, and the state of all latency keys. Use it for debug pages and
// tests.
func (h *controls) Snapshot() Snapshot {
	h.mustBeInitialized()
	s := Snapshot{Name: h.options.name, Protocol: h.protocol, Shadow: h.client.Policy.Config().Shadow, Stats: (*Stats)(h.client.Counters).Snapshot(), Config: *h.settings.Load(), Enabled: h.client.Enabled()}
	for _, v := range h.client.Policy.Snapshots() {
		s.Keys = append(s.Keys, KeySnapshot{
			Host: v.Name.Host, Route: v.Name.Route,
			Requests: v.Requests, Hedges: v.Hedges, Wins: v.Wins, ShadowWins: v.ShadowWins, Saved: v.Saved,
			Denied: v.Denied, Samples: v.Samples, P50: v.P50, P90: v.P90, P99: v.P99, Delays: v.Delays,
			Budget: v.Tokens, BudgetScale: v.BudgetScale, PausedUntil: v.PausedUntil, PushBackShare: v.PushbackShare, SlowShare: v.SlowShare, Stall: v.Stall, Audit: auditOrNil(v.Audit), Unresumed: v.Unresumed,
		})
		if detector, ok := v.Extension.(*endpoint.Detector); ok {
			s.Keys[len(s.Keys)-1].Endpoints = endpointSnapshots(detector)
		}
		h.describeKey(&s.Keys[len(s.Keys)-1])
	}
	return s
}

// logSettingsChange logs each setting that differs between old and now, with both values and its name in JSON. It also logs a
// very small budget, unless the old one was very small, too.
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
	if ops.IsSmallBudget(now.BudgetPercent) && !ops.IsSmallBudget(old.BudgetPercent) {
		h.client.Log.WarnOfSmallBudget(now.hedgesAllowed(), now.BudgetPercent)
	}
}

// auditOrNil returns a pointer to v for a snapshot, or nil if v is the zero Audit, which means that the host is not
// audited.
func auditOrNil(v Audit) *Audit {
	if v.Verdict == "" {
		return nil
	}
	return &v
}
