package hedge

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/sanitize"
)

// A Config holds the settings that can come from outside a program. Start from
// [DefaultConfig]: the zero value is not valid. The options of the same names say
// what each setting does. In JSON and in YAML, durations are strings like "10ms".
//
// A name in JSON that is no setting is an error, and so is a duration without a unit.
// Decoders of YAML report the line; they refuse unknown names if asked to, as
// by KnownFields(true).
//
// A zero is zero: MaxHedges, BudgetPercent and MaxHedgesPerSecond of 0 send no hedge. [Unset] is the default of MaxDelay,
// InitialDelay and MaxHedgesPerSecond; as text it is "-1ns", and -1 as a number.
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

// Unset is the value of [Config].MaxDelay, InitialDelay and MaxHedgesPerSecond with which the setting has no effect.
const Unset = -1

// numbers are the fields of Config that are numbers: their defaults and bounds, and how the
// configuration of the policy gets them, if it does. A new one needs a field of Config, a row here, an option, a row in
// docs/options.md and, if the policy uses it, a field of policy.Config.
var numbers = [...]struct {
	field     string
	byDefault any
	bounds    numberRange
	tell      func(*policy.Config, *Config)
}{
	{"Percentile", 0.90, halfOpen(0, 1), func(e *policy.Config, c *Config) { e.Percentile = c.Percentile }},
	{"MaxHedges", 2, within(0, race.MaxHedges), func(e *policy.Config, c *Config) { e.MaxHedges = c.hedgesAllowed() }},
	{"BudgetPercent", 10.0, within(0, 100*race.MaxHedges), func(e *policy.Config, c *Config) { e.Share = c.BudgetPercent / 100 }},
	{"EstimatedRPS", 100.0, finite, func(e *policy.Config, c *Config) { e.EstimatedRPS = c.EstimatedRPS }},
	{"MinDelay", time.Millisecond, atLeast(0), func(e *policy.Config, c *Config) { e.MinDelay = c.MinDelay }},
	{"MaxDelay", time.Duration(Unset), atLeast(0).orUnset(), func(e *policy.Config, c *Config) { e.MaxDelay = delayOrUnset(c.MaxDelay) }},
	{"InitialDelay", time.Duration(Unset), atLeast(0).orUnset(), func(e *policy.Config, c *Config) { e.InitialDelay = delayOrUnset(c.InitialDelay) }},
	{"Burst", 2 * time.Second, atLeast(0), func(e *policy.Config, c *Config) { e.Burst = c.Burst }},
	{"MaxHedgesPerSecond", float64(Unset), finite.orUnset(), func(e *policy.Config, c *Config) { e.MaxPerSecond = max(c.MaxHedgesPerSecond, 0) }},
	{"MaxKeys", 4096, atLeast(1), func(e *policy.Config, c *Config) { e.MaxKeys = c.MaxKeys }},
	{"Linger", time.Second, atLeast(0), nil},
	{"MaxReplayBytes", int64(64 << 10), atLeast(0), nil},
}

// spots are where numbers stand in Config.
var spots = func() (all [len(numbers)]int) {
	for i, n := range numbers {
		field, ok := reflect.TypeFor[Config]().FieldByName(n.field)
		if !ok {
			panic("hedge: Config has no field " + n.field)
		}
		all[i] = field.Index[0]
	}
	return all
}()

// delayOrUnset returns the delay of a policy, where 0 stands for [Unset].
func delayOrUnset(d time.Duration) time.Duration {
	if d == Unset {
		return 0
	}
	return max(d, 1)
}

// hedgesAllowed returns how many hedges a call may have: none if no hedge may be sent in any second.
func (c *Config) hedgesAllowed() int {
	if c.MaxHedgesPerSecond == 0 {
		return 0
	}
	return c.MaxHedges
}

// DefaultConfig returns the settings that are in force without any option.
func DefaultConfig() Config {
	var c Config
	fields := reflect.ValueOf(&c).Elem()
	for i, n := range numbers {
		fields.Field(spots[i]).Set(reflect.ValueOf(n.byDefault))
	}
	return c
}

// Validate returns an error that names the first field whose value makes no sense, by
// itself or beside another field. It says so if c seems not to come from [DefaultConfig].
func (c Config) Validate() error {
	err := c.validateFields()
	if err == nil {
		err = c.validateTogether()
	}
	if err != nil && c.madeByHand() {
		return fmt.Errorf("%w; start from DefaultConfig()", err)
	}
	return err
}

// validateTogether looks at fields beside others.
func (c *Config) validateTogether() error {
	switch {
	case c.MaxDelay != Unset && c.MaxDelay < c.MinDelay:
		return fail("MaxDelay", c.MaxDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.InitialDelay != Unset && c.InitialDelay < c.MinDelay:
		return fail("InitialDelay", c.InitialDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.MaxDelay != Unset && c.InitialDelay > c.MaxDelay:
		return fail("InitialDelay", c.InitialDelay, fmt.Sprintf("at most MaxDelay, %v", c.MaxDelay))
	}
	return nil
}

// madeByHand reports whether several fields are zero that are not by default, and one of them must not be: who changes
// [DefaultConfig] changes them one by one.
func (c *Config) madeByHand() bool {
	zeros, fields := 0, reflect.ValueOf(c).Elem()
	for i, n := range numbers {
		if fields.Field(spots[i]).IsZero() && !reflect.ValueOf(n.byDefault).IsZero() {
			zeros++
		}
	}
	return c.MaxKeys == 0 && zeros > 1
}

func fail(field string, value any, want string) error {
	return fmt.Errorf("hedge: Config.%s: %v is not %s", field, value, want)
}

// validateFields looks at each field alone.
func (c *Config) validateFields() error {
	fields := reflect.ValueOf(c).Elem()
	for i, n := range numbers {
		field := fields.Field(spots[i])
		if x := field.Convert(reflect.TypeFor[float64]()).Float(); !n.bounds.contains(x) {
			return fail(n.field, field.Interface(), n.bounds.want)
		}
	}
	if want := attemptHeaderWants(c.AttemptHeader); want != "" {
		return fail("AttemptHeader", strconv.Quote(c.AttemptHeader), want)
	}
	return nil
}

// forCalls returns the settings that calls read.
func (c *Config) forCalls() calls.Settings {
	return calls.Settings{MaxHedges: c.hedgesAllowed(), MaxReplayBytes: c.MaxReplayBytes, Linger: c.Linger, AttemptHeader: c.AttemptHeader}
}

// policyConfig returns the settings that package policy has.
func (c *Config) policyConfig() policy.Config {
	e := policy.Config{Short: true}
	for _, n := range numbers {
		if n.tell != nil {
			n.tell(&e, c)
		}
	}
	return e
}

// MarshalJSON writes durations as strings.
func (c Config) MarshalJSON() ([]byte, error) {
	text, fields := []byte{'{'}, reflect.ValueOf(c)
	for i, name := range settingNames {
		value := fields.Field(i).Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.String()
		}
		b, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(strconv.AppendQuote(text, name), ':'), b...)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON reads durations from strings like "10ms"; the only number that it takes
// for one is 0. Settings that are not mentioned stay as they are. Its error names the
// setting and the value; after an error none is changed. A name that is no setting is
// an error too.
func (c *Config) UnmarshalJSON(b []byte) error { return c.read(b, true) }

// read is UnmarshalJSON. If it is not strict, it leaves out what is no setting.
func (c *Config) read(b []byte, strict bool) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(b, &given); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			return fmt.Errorf("hedge: Config: %s is not an object of settings", wrong.Value)
		}
		return fmt.Errorf("hedge: Config: %w", err)
	}
	read := *c
	fields := reflect.ValueOf(&read).Elem()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i := slices.IndexFunc(settingNames, func(known string) bool { return strings.EqualFold(known, name) })
		switch {
		case i >= 0:
			if field := fields.Field(i).Addr().Interface(); readSetting(field, given[name]) != nil {
				return fmt.Errorf("hedge: Config: %s: %s is not %s", settingNames[i], sanitize.CleanText(string(given[name])), kind(field))
			}
		case strict:
			return fmt.Errorf("hedge: Config: %q is no setting; there are %s", sanitize.CleanText(name), strings.Join(settingNames, ", "))
		}
	}
	*c = read
	return nil
}

// settingNames are the names of Config's fields in JSON, in their order.
var settingNames = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
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

// A numberRange is the set of values that a number of [Config] may have. NaN is in none.
type numberRange struct {
	want      string // the range in words: "in [0, 1)"
	low, high float64
	open      bool // high itself is not in the range
	unset     bool // Unset is in the range
}

// finite is the range of the finite numbers from 0 on.
var finite = numberRange{want: "finite and at least 0", high: math.MaxFloat64}

// atLeast returns the range of the numbers from low on.
func atLeast(low float64) numberRange {
	return numberRange{want: fmt.Sprintf("at least %v", low), low: low, high: math.Inf(1)}
}

// within returns the range of the numbers from low to high.
func within(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v]", low, high), low: low, high: high}
}

// halfOpen returns the range [low, high).
func halfOpen(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v)", low, high), low: low, high: high, open: true}
}

// orUnset returns the range r and [Unset].
func (r numberRange) orUnset() numberRange {
	r.want, r.unset = r.want+", or Unset", true
	return r
}

// contains reports whether x is in the range.
func (r numberRange) contains(x float64) bool {
	return r.unset && x == Unset || x >= r.low && x <= r.high && !(r.open && x == r.high)
}
