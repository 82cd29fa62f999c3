package hedge

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/internal/race"
)

// A Config holds the settings that can come from outside a program. Start from
// [DefaultConfig]: the zero value is not valid. The options of the same names say
// what each setting does. In JSON and in YAML, durations are strings like "10ms".
//
// A name in JSON that is no setting is an error, and so is a duration without a unit.
// Decoders of YAML report the line; they refuse unknown names if asked to, as
// by KnownFields(true).
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
	e := engine.Default()
	return Config{
		Percentile:         e.Percentile,
		MaxHedges:          e.MaxHedges,
		BudgetPercent:      100 * e.Share,
		EstimatedRPS:       e.EstimatedRPS,
		MinDelay:           e.MinDelay,
		MaxDelay:           e.MaxDelay,
		InitialDelay:       e.InitialDelay,
		Burst:              e.Burst,
		MaxHedgesPerSecond: e.MaxPerSecond,
		MaxKeys:            e.MaxKeys,
		Linger:             time.Second,
		MaxReplayBytes:     64 << 10,
	}
}

// Validate returns an error that names the first field whose value makes no sense, by
// itself or beside another field.
func (c Config) Validate() error {
	if err := c.validateFields(); err != nil {
		return err
	}
	switch {
	case c.MaxDelay > 0 && c.MaxDelay < c.MinDelay:
		return fail("MaxDelay", c.MaxDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.InitialDelay > 0 && c.InitialDelay < c.MinDelay:
		return fail("InitialDelay", c.InitialDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.MaxDelay > 0 && c.InitialDelay > c.MaxDelay:
		return fail("InitialDelay", c.InitialDelay, fmt.Sprintf("at most MaxDelay, %v", c.MaxDelay))
	}
	return nil
}

func fail(field string, value any, want string) error {
	return fmt.Errorf("hedge: Config.%s: %v is not %s", field, value, want)
}

// validateFields looks at each field alone.
func (c *Config) validateFields() error {
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

// setting returns an option that sets a field of Config. It panics if the value makes
// no sense by itself; whether it does beside other fields is known once all are set.
func setting(f func(*Config)) Option {
	probe := DefaultConfig()
	f(&probe)
	if err := probe.validateFields(); err != nil {
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
// The default, 0, sets no limit. It panics if d is negative; [New] panics if it is
// below [WithMinDelay]'s.
func WithMaxDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.MaxDelay = d })
}

// WithInitialDelay hedges after d until ten calls are known. The default, 0, sends
// no hedge before that: a guess that is too short doubles the load of a service at
// start. It panics if d is negative; [New] panics if it is below [WithMinDelay]'s or
// above [WithMaxDelay]'s.
func WithInitialDelay(d time.Duration) Option {
	return setting(func(c *Config) { c.InitialDelay = d })
}

// WithBurst lets a key save up the budget that the requests of d earn, counted as 100 per
// second at least, and at least one hedge. The default is 2s. A larger burst bridges longer pauses of a replica, and
// costs more in an overload: besides hedges for 17 % of the calls made during an
// outage, three hedges, or the budget of d if that is more. It panics if d is negative.
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
// default is 1s. 0 cancels losers at once, or as soon as that cannot fail another request
// on the same connection: a tenth of a second after the loser got a connection that was in
// use just before. A loser that has no connection yet is always cancelled at once, and so
// are those of HTTP/2 and gRPC, which costs no connection. Where answers come from behind a
// [Limiter], losers are cancelled if that can be done at once. It panics if d is negative.
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
	if err := c.Validate(); err != nil {
		panic(err)
	}
	return setting(func(old *Config) { *old = c })
}

// plain is Config without its methods.
type plain Config

// textual is a Config in JSON: its durations are text.
type textual struct {
	plain
	MinDelay     duration `json:"min_delay"`
	MaxDelay     duration `json:"max_delay"`
	InitialDelay duration `json:"initial_delay"`
	Burst        duration `json:"burst"`
	Linger       duration `json:"linger"`
}

// MarshalJSON writes durations as strings.
func (c Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(textual{
		plain(c), duration(c.MinDelay), duration(c.MaxDelay),
		duration(c.InitialDelay), duration(c.Burst), duration(c.Linger),
	})
}

// duration is a time.Duration that is text in JSON.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalJSON reads durations from strings like "10ms"; the only number that it takes
// for one is 0. Settings that are not mentioned stay as they are. Its error names the
// setting and the value; after an error none is changed. A name that is no setting is
// an error too.
func (c *Config) UnmarshalJSON(b []byte) error { return c.read(b, true) }

// read is UnmarshalJSON. If it is not strict, it leaves out what is no setting.
func (c *Config) read(b []byte, strict bool) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(b, &given); err != nil {
		return fmt.Errorf("hedge: Config: %w", err)
	}
	read := *c
	fields := reflect.ValueOf(&read).Elem()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i := slices.IndexFunc(settingNames, func(known string) bool { return strings.EqualFold(known, name) })
		switch {
		case i >= 0:
			if field := fields.Field(i).Addr().Interface(); readSetting(field, given[name]) != nil {
				return fmt.Errorf("hedge: Config: %s: %s is not %s", settingNames[i], label.Clean(string(given[name])), kind(field))
			}
		case strict:
			return fmt.Errorf("hedge: Config: %q is no setting; there are %s", label.Clean(name), strings.Join(settingNames, ", "))
		}
	}
	*c = read
	return nil
}

// settingNames are the names of Config's fields in JSON, in their order.
var settingNames = func() (names []string) {
	for f := range reflect.TypeFor[Config]().Fields() {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}()

// readSetting reads the field that a pointer is given to.
func readSetting(field any, text json.RawMessage) error {
	d, ok := field.(*time.Duration)
	switch {
	case !ok:
		return json.Unmarshal(text, field)
	case string(text) == "0":
		*d = 0
		return nil
	}
	var s *string // stays nil if text is null
	err := json.Unmarshal(text, &s)
	if err == nil && s != nil {
		*d, err = time.ParseDuration(*s)
	}
	return err
}

// kind says what the field that a pointer is given to can hold.
func kind(field any) string {
	switch field.(type) {
	case *time.Duration:
		return `a duration like "10ms"`
	case *float64:
		return "a number"
	case *string:
		return "a string"
	}
	return "an integer"
}
