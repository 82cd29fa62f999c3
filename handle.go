package hedge

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/engine"
)

// handle is what Transport, Interceptor and Hedger have in common: what operators
// read and change. It is embedded, so that its exported methods are theirs.
type handle struct {
	options  config // as given; the current values of its Config are in settings
	settings atomic.Pointer[Config]
	engine   *engine.Engine
	stats    *Stats
	off      atomic.Bool
	log      *slog.Logger // nil: silence
	protocol string       // as in [KeyInfo]
}

// mustInit panics if the options contradict each other.
func (h *handle) mustInit(protocol string, opts []Option) {
	if err := h.init(protocol, DefaultConfig(), opts); err != nil {
		panic(err)
	}
}

func (h *handle) init(protocol string, base Config, opts []Option) error {
	h.protocol, h.options = protocol, config{Config: base, failure: []int{429, 500, 502, 503, 504}}
	for _, o := range opts {
		if o == nil {
			return errors.New("hedge: an Option is nil")
		}
		o.apply(&h.options)
	}
	h.readEnvironment()
	settings := h.options.Config
	if err := settings.Validate(); err != nil {
		return err
	}
	if r := h.options.routes; r != nil {
		if err := r.compile(); err != nil {
			return err
		}
	}
	settings.AttemptHeader = http.CanonicalHeaderKey(settings.AttemptHeader)
	h.settings.Store(&settings)
	c := h.engineConfig(&settings)
	if observers := h.options.observers; len(observers) > 0 {
		c.Observer = &watcher{observers: observers, client: h.options.name, protocol: protocol}
	}
	h.startLog(&c)
	h.engine = engine.New(c)
	h.stats = new(Stats)
	if p := h.options.stats; p != nil {
		if *p == nil {
			*p = h.stats
		}
		h.stats = *p
	}
	return nil
}

// readEnvironment lets operators override settings in programs that they cannot
// change. It is called once, when the handle is made.
func (h *handle) readEnvironment() {
	if v := os.Getenv("HEDGE_DISABLED"); v != "" {
		disabled, err := strconv.ParseBool(v)
		h.off.Store(disabled || err != nil) // a value like "yes" disables as well
	}
	switch os.Getenv("HEDGE_MODE") {
	case "shadow", "observe": // observe is the older spelling
		h.options.shadow = true
	}
}

// engineConfig returns settings and options in the terms of package engine.
func (h *handle) engineConfig(settings *Config) engine.Config {
	c := settings.engine()
	c.PerHost, c.Shadow = h.options.routes != nil, h.options.shadow
	if b := h.options.budget; b != nil {
		c.Shared, c.Share = b.bucket, b.percent/100
	}
	return c
}

// Snapshot returns what is known and what was done. It is a copy: changing it
// changes nothing else.
func (h *handle) Snapshot() Snapshot { return h.snapshot() }

// String returns the Snapshot as JSON, for expvar.Publish.
func (h *handle) String() string { return h.Snapshot().json() }

// SetEnabled switches hedging on or off, for calls that start from now on. What
// was learned is kept, and learning goes on only while hedging is enabled.
func (h *handle) SetEnabled(on bool) {
	if h.off.Swap(!on) == on {
		h.logSwitch(on, "SetEnabled")
	}
}

// Update changes the settings for calls that start from now on. What was learned
// is kept. If f leaves the settings invalid, nothing changes and the error names
// the field and the value.
func (h *handle) Update(f func(*Config)) error {
	s := *h.settings.Load()
	f(&s)
	if err := s.Validate(); err != nil {
		return err
	}
	s.AttemptHeader = http.CanonicalHeaderKey(s.AttemptHeader)
	old := h.settings.Swap(&s)
	h.engine.SetConfig(h.engineConfig(&s), time.Now())
	h.logUpdate(old, &s)
	return nil
}

// Export writes what was learned of latencies, for Import in another process or
// after a restart: a few hundred bytes per key and at most 64 MiB, the most
// recently used keys first.
func (h *handle) Export(w io.Writer) error {
	if err := h.engine.Export(w, time.Now()); err != nil {
		return fmt.Errorf("hedge: Export: %w", err)
	}
	return nil
}

// Import learns what another process has exported, so that calls are hedged from
// the first one on instead of the eleventh. It adds to what is known, and may be
// called several times, with the exports of several processes; what is measured
// from then on soon outweighs it. Keys for which there is no room (see
// [WithMaxKeys]) are left out.
//
// Import returns an error and changes nothing if the export is damaged, was not
// written by Export, has another version, is larger than 64 MiB or is older than a day.
func (h *handle) Import(r io.Reader) error {
	share := func(n engine.Name) float64 {
		if r := h.options.routes; r != nil && r.exact[n.Route] != nil {
			return r.exact[n.Route].BudgetPercent / 100
		}
		return 0
	}
	keys, err := h.engine.Import(r, time.Now(), share)
	if err != nil {
		return fmt.Errorf("hedge: Import: %w", err)
	}
	h.logImport(keys)
	return nil
}

// tally counts a call that could have been hedged and has ended.
func (h *handle) tally(call *engine.Call, winner int) {
	if call.Hedges > 0 {
		h.stats.HedgedRequests.Add(1)
		h.stats.HedgesSent.Add(int64(call.Hedges))
		switch {
		case winner > 0:
			h.stats.HedgeWins.Add(1)
		case winner == 0:
			h.stats.PrimaryWins.Add(1)
		}
	}
	if call.Denied == engine.Budget {
		h.stats.BudgetExhausted.Add(1)
	}
}
