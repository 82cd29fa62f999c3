package hedge

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

// A Config holds the settings that can come from outside a program. Start from
// [DefaultConfig]: the zero value is not valid. The options of the same names say
// what each setting does. In JSON and in YAML, durations are strings like "10ms".
type Config struct {
	Percentile         float64       `json:"percentile" yaml:"percentile"`
	MaxHedges          int           `json:"max_hedges" yaml:"max_hedges"`
	BudgetPercent      float64       `json:"budget_percent" yaml:"budget_percent"`
	EstimatedRPS       float64       `json:"estimated_rps" yaml:"estimated_rps"`
	MinDelay           time.Duration `json:"min_delay" yaml:"min_delay"`
	MaxDelay           time.Duration `json:"max_delay" yaml:"max_delay"`
	InitialDelay       time.Duration `json:"initial_delay" yaml:"initial_delay"`
	Burst              time.Duration `json:"burst" yaml:"burst"`
	MaxHedgesPerSecond float64       `json:"max_hedges_per_second" yaml:"max_hedges_per_second"`
	MaxKeys            int           `json:"max_keys" yaml:"max_keys"`
	Linger             time.Duration `json:"linger" yaml:"linger"`
	MaxReplayBytes     int64         `json:"max_replay_bytes" yaml:"max_replay_bytes"`
	AttemptHeader      string        `json:"attempt_header" yaml:"attempt_header"`
}

// DefaultConfig returns the settings that are in force without any option.
func DefaultConfig() Config {
	return Config{
		Percentile:     0.90,
		MaxHedges:      2,
		BudgetPercent:  10,
		EstimatedRPS:   100,
		MinDelay:       time.Millisecond,
		Burst:          2 * time.Second,
		MaxKeys:        4096,
		Linger:         time.Second,
		MaxReplayBytes: 64 << 10,
	}
}

// Validate returns an error that names the first field whose value makes no sense.
func (c Config) Validate() error {
	fail := func(field string, value any, want string) error {
		return fmt.Errorf("hedge: Config.%s: %v is not %s", field, value, want)
	}
	// Written so that NaN fails.
	switch {
	case !(c.Percentile >= 0 && c.Percentile < 1):
		return fail("Percentile", c.Percentile, "in [0, 1)")
	case c.MaxHedges < 0 || c.MaxHedges > race.MaxHedges:
		return fail("MaxHedges", c.MaxHedges, fmt.Sprintf("in [0, %d]", race.MaxHedges))
	case !(c.BudgetPercent >= 0 && c.BudgetPercent <= 100*race.MaxHedges):
		return fail("BudgetPercent", c.BudgetPercent, fmt.Sprintf("in [0, %d]", 100*race.MaxHedges))
	case !(c.EstimatedRPS >= 0 && c.EstimatedRPS <= math.MaxFloat64):
		return fail("EstimatedRPS", c.EstimatedRPS, "finite and at least 0")
	case c.MinDelay < 0:
		return fail("MinDelay", c.MinDelay, "at least 0")
	case c.MaxDelay < 0:
		return fail("MaxDelay", c.MaxDelay, "at least 0")
	case c.MaxDelay > 0 && c.MaxDelay < c.MinDelay:
		return fail("MaxDelay", c.MaxDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.InitialDelay < 0:
		return fail("InitialDelay", c.InitialDelay, "at least 0")
	case c.Burst < 0:
		return fail("Burst", c.Burst, "at least 0")
	case !(c.MaxHedgesPerSecond >= 0 && c.MaxHedgesPerSecond <= math.MaxFloat64):
		return fail("MaxHedgesPerSecond", c.MaxHedgesPerSecond, "finite and at least 0")
	case c.MaxKeys < 1:
		return fail("MaxKeys", c.MaxKeys, "at least 1")
	case c.Linger < 0:
		return fail("Linger", c.Linger, "at least 0")
	case c.MaxReplayBytes < 0:
		return fail("MaxReplayBytes", c.MaxReplayBytes, "at least 0")
	case !validName(c.AttemptHeader):
		return fail("AttemptHeader", strconv.Quote(c.AttemptHeader), "the name of a header")
	}
	return nil
}

// engine returns the settings in the terms of package engine.
func (c *Config) engine() engine.Config {
	return engine.Config{
		Percentile:   c.Percentile,
		MaxHedges:    c.MaxHedges,
		Share:        c.BudgetPercent / 100,
		EstimatedRPS: c.EstimatedRPS,
		Burst:        c.Burst,
		MinDelay:     c.MinDelay,
		MaxDelay:     c.MaxDelay,
		InitialDelay: c.InitialDelay,
		MaxPerSecond: c.MaxHedgesPerSecond,
		MaxKeys:      c.MaxKeys,
		Short:        true,
	}
}

// setting returns an option that sets a field of Config. It panics if the value is invalid.
func setting(f func(*Config)) Option {
	probe := DefaultConfig()
	f(&probe)
	if err := probe.Validate(); err != nil {
		panic(err)
	}
	return optionFunc(func(c *config) { f(&c.Config) })
}

// WithPercentile never hedges sooner than quantile q of the recent latencies. The
// default is 0.90. The delay is usually later, because the budget asks for it.
// It panics unless 0 <= q < 1.
func WithPercentile(q float64) Option {
	return setting(func(c *Config) { c.Percentile = q })
}

// WithMaxHedges sends at most n hedges per call, all within the same budget.
// The default is 2. 0 sends none. It panics unless 0 <= n <= 3.
func WithMaxHedges(n int) Option {
	return setting(func(c *Config) { c.MaxHedges = n })
}

// WithBudgetPercent sends at most percent hedges per 100 requests of a key, and
// besides them what [WithBurst] lets it save up. The default is 10. 0 sends none.
// It panics unless 0 <= percent <= 300.
func WithBudgetPercent(percent float64) Option {
	return setting(func(c *Config) { c.BudgetPercent = percent })
}

// WithEstimatedRPS sets how many requests per second to expect of a key. It sizes
// the burst of the key's budget until the real rate is measured, and need not be
// exact. The default is 100. It panics unless rps is finite and not negative.
func WithEstimatedRPS(rps float64) Option {
	return setting(func(c *Config) { c.EstimatedRPS = rps })
}

// WithMinDelay never hedges sooner than d after the primary started, nor sooner
// than d after the hedge before. The default is 1ms. It panics if d is negative.
func WithMinDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.MinDelay = d })
}

// WithMaxDelay hedges after d at the latest, budget permitting.
// The default, 0, sets no limit. It panics if d is negative.
func WithMaxDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.MaxDelay = d })
}

// WithInitialDelay hedges after d until ten calls are known. The default, 0, sends
// no hedge before that: a guess that is too short doubles the load of a service at
// start. It panics if d is negative.
func WithInitialDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.InitialDelay = d })
}

// WithBurst lets a key save up the budget that the requests of d earn, and at least
// one hedge. Of that an outage gets three hedges or the budget of d, whichever is more, and
// for the rest hedges for a fifth of its calls. The default is 2s. A larger burst bridges longer pauses of a replica,
// and costs more in an overload. It panics if d is negative.
func WithBurst(d time.Duration) Option {
	return setting(func(c *Config) { c.Burst = d })
}

// WithMaxHedgesPerSecond bounds the hedges of all keys together, beside the
// budget of each. The default, 0, sets no limit. It panics unless n is finite and not negative.
func WithMaxHedgesPerSecond(n float64) Option {
	return setting(func(c *Config) { c.MaxHedgesPerSecond = n })
}

// WithMaxKeys remembers at most n keys; the least recently used are forgotten
// first. The default is 4096. It panics unless n is positive.
func WithMaxKeys(n int) Option {
	return setting(func(c *Config) { c.MaxKeys = n })
}

// WithLinger gives the losers of HTTP/1.1 races up to d to finish, so that their
// connections can be used again: cancelling a loser closes its connection. The
// default is 1s. 0 cancels losers at once. HTTP/2 and gRPC losers are always
// cancelled at once, which costs no connection. It panics if d is negative.
func WithLinger(d time.Duration) Option {
	return setting(func(c *Config) { c.Linger = d })
}

// WithMaxReplayBytes hedges HTTP requests with bodies of up to n bytes. Such a
// body is read once, before the primary is sent. The default is 64 KiB. 0 hedges
// only requests without a body. It panics if n is negative.
func WithMaxReplayBytes(n int64) Option {
	return setting(func(c *Config) { c.MaxReplayBytes = n })
}

// WithConfig replaces all settings that a [Config] holds. It panics if c is invalid.
func WithConfig(c Config) Option {
	return setting(func(old *Config) { *old = c })
}

// plain is Config without its methods.
type plain Config

// textual is a Config in JSON: its durations are text.
type textual struct {
	*plain
	MinDelay     *duration `json:"min_delay"`
	MaxDelay     *duration `json:"max_delay"`
	InitialDelay *duration `json:"initial_delay"`
	Burst        *duration `json:"burst"`
	Linger       *duration `json:"linger"`
}

func (c *Config) textual() textual {
	return textual{
		(*plain)(c), (*duration)(&c.MinDelay), (*duration)(&c.MaxDelay),
		(*duration)(&c.InitialDelay), (*duration)(&c.Burst), (*duration)(&c.Linger),
	}
}

// MarshalJSON writes durations as strings.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.textual()) }

// UnmarshalJSON reads durations from strings, or from numbers of nanoseconds.
// Settings that are not mentioned stay as they are; after an error none is changed.
func (c *Config) UnmarshalJSON(b []byte) error {
	read := *c
	text := read.textual()
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	*c = read
	return nil
}

// duration is a time.Duration that is text in JSON.
type duration time.Duration

func (d duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

func (d *duration) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '"' {
		return json.Unmarshal(b, (*int64)(d))
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.ParseDuration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}
