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

// A Config holds the settings that can be read from a file or flags. The options of the same names document them. Start
// from [DefaultConfig]: the zero value is not valid. A setting of 0 means zero, not the default: 0 for MaxHedges,
// BudgetPercent or MaxHedgesPerSecond sends no hedge.
//
// In JSON and YAML, durations are strings such as "10ms". An unknown name or a duration without a unit is an error in
// JSON. YAML decoders report the line; they reject unknown names if told to, for example by KnownFields(true).
//
// [Unset] is the default of MaxDelay, InitialDelay and MaxHedgesPerSecond. In a file it is "-1ns" for durations, and -1
// for MaxHedgesPerSecond.
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

// Unset disables the setting if it is the value of [Config].MaxDelay, InitialDelay or MaxHedgesPerSecond.
const Unset = -1

// numericSettings describes the numeric fields of Config: default, bounds, and the function that copies the field to the
// configuration of the policy; nil: the policy does not use it.
//
// A new setting needs a field of Config, a row here, an option, a row in docs/options.md and, if the policy uses it, a
// field of policy.Config.
var numericSettings = [...]struct {
	field        string
	defaultValue any
	bounds       numberRange
	copyTo       func(*policy.Config, *Config)
}{
	{"Percentile", 0.90, halfOpenRange(0, 1), func(e *policy.Config, c *Config) { e.Percentile = c.Percentile }},
	{"MaxHedges", 2, closedRange(0, race.MaxHedges), func(e *policy.Config, c *Config) { e.MaxHedges = c.hedgesAllowed() }},
	{"BudgetPercent", 10.0, closedRange(0, 100*race.MaxHedges), func(e *policy.Config, c *Config) { e.Share = c.BudgetPercent / 100 }},
	{"EstimatedRPS", 100.0, finite, func(e *policy.Config, c *Config) { e.EstimatedRPS = c.EstimatedRPS }},
	{"MinDelay", time.Millisecond, rangeFrom(0), func(e *policy.Config, c *Config) { e.MinDelay = c.MinDelay }},
	{"MaxDelay", time.Duration(Unset), rangeFrom(0).withUnset(), func(e *policy.Config, c *Config) { e.MaxDelay = policyDelay(c.MaxDelay) }},
	{"InitialDelay", time.Duration(Unset), rangeFrom(0).withUnset(), func(e *policy.Config, c *Config) { e.InitialDelay = policyDelay(c.InitialDelay) }},
	{"Burst", 2 * time.Second, rangeFrom(0), func(e *policy.Config, c *Config) { e.Burst = c.Burst }},
	{"MaxHedgesPerSecond", float64(Unset), finite.withUnset(), func(e *policy.Config, c *Config) { e.MaxPerSecond = max(c.MaxHedgesPerSecond, 0) }},
	{"MaxKeys", 4096, rangeFrom(1), func(e *policy.Config, c *Config) { e.MaxKeys = c.MaxKeys }},
	{"Linger", time.Second, rangeFrom(0), nil},
	{"MaxReplayBytes", int64(64 << 10), rangeFrom(0), nil},
}

// numberFieldIndexes are the indexes of numericSettings among the fields of Config.
var numberFieldIndexes = func() (all [len(numericSettings)]int) {
	for i, n := range numericSettings {
		field, ok := reflect.TypeFor[Config]().FieldByName(n.field)
		if !ok {
			panic("hedge: Config has no field " + n.field)
		}
		all[i] = field.Index[0]
	}
	return all
}()

// policyDelay converts a delay of Config to one of package policy, where 0 means not set. A delay of 0 becomes 1ns.
func policyDelay(d time.Duration) time.Duration {
	if d == Unset {
		return 0
	}
	return max(d, 1)
}

// hedgesAllowed returns the maximum number of hedges per call: 0 if the limit of hedges per second is 0.
func (c *Config) hedgesAllowed() int {
	if c.MaxHedgesPerSecond == 0 {
		return 0
	}
	return c.MaxHedges
}

// DefaultConfig returns the settings that apply without options.
func DefaultConfig() Config {
	var c Config
	fields := reflect.ValueOf(&c).Elem()
	for i, n := range numericSettings {
		fields.Field(numberFieldIndexes[i]).Set(reflect.ValueOf(n.defaultValue))
	}
	return c
}

// Validate returns an error that names the first field with an invalid value, or with a value that conflicts with
// another field. The error also mentions [DefaultConfig] if c does not seem to be derived from it.
func (c Config) Validate() error {
	err := c.validateFields()
	if err == nil {
		err = c.validateTogether()
	}
	if err != nil && c.seemsHandmade() {
		return fmt.Errorf("%w; start from DefaultConfig()", err)
	}
	return err
}

// validateTogether returns an error if two valid fields conflict.
func (c *Config) validateTogether() error {
	switch {
	case c.MaxDelay != Unset && c.MaxDelay < c.MinDelay:
		return newFieldError("MaxDelay", c.MaxDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.InitialDelay != Unset && c.InitialDelay < c.MinDelay:
		return newFieldError("InitialDelay", c.InitialDelay, fmt.Sprintf("at least MinDelay, %v", c.MinDelay))
	case c.MaxDelay != Unset && c.InitialDelay > c.MaxDelay:
		return newFieldError("InitialDelay", c.InitialDelay, fmt.Sprintf("at most MaxDelay, %v", c.MaxDelay))
	}
	return nil
}

// seemsHandmade reports whether c was probably not derived from [DefaultConfig]: MaxKeys and other fields are zero
// although their defaults are not.
func (c *Config) seemsHandmade() bool {
	zeros, fields := 0, reflect.ValueOf(c).Elem()
	for i, n := range numericSettings {
		if fields.Field(numberFieldIndexes[i]).IsZero() && !reflect.ValueOf(n.defaultValue).IsZero() {
			zeros++
		}
	}
	return c.MaxKeys == 0 && zeros > 1
}

// newFieldError returns the error for a field whose value does not meet the requirement want.
func newFieldError(field string, value any, want string) error {
	return fmt.Errorf("hedge: Config.%s: %v is not %s", field, value, want)
}

// validateFields returns an error for the first field that is invalid on its own.
func (c *Config) validateFields() error {
	fields := reflect.ValueOf(c).Elem()
	for i, n := range numericSettings {
		field := fields.Field(numberFieldIndexes[i])
		if x := field.Convert(reflect.TypeFor[float64]()).Float(); !n.bounds.contains(x) {
			return newFieldError(n.field, field.Interface(), n.bounds.want)
		}
	}
	if want := checkAttemptHeader(c.AttemptHeader); want != "" {
		return newFieldError("AttemptHeader", strconv.Quote(c.AttemptHeader), want)
	}
	return nil
}

// callSettings returns the settings that package calls uses.
func (c *Config) callSettings() calls.Settings {
	return calls.Settings{MaxHedges: c.hedgesAllowed(), MaxReplayBytes: c.MaxReplayBytes, Linger: c.Linger, AttemptHeader: c.AttemptHeader}
}

// policyConfig returns the settings that package policy uses.
func (c *Config) policyConfig() policy.Config {
	e := policy.Config{HasShortBucket: true}
	for _, n := range numericSettings {
		if n.copyTo != nil {
			n.copyTo(&e, c)
		}
	}
	return e
}

// MarshalJSON encodes c as a JSON object. Durations are strings such as "10ms".
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

// UnmarshalJSON reads settings from a JSON object; the other settings of c keep their values. Durations are strings
// such as "10ms", or the number 0. If a name is unknown or a value invalid, the error names both, and c does not
// change.
func (c *Config) UnmarshalJSON(b []byte) error { return c.decodeSettings(b, true) }

// decodeSettings implements UnmarshalJSON. If strict is false, unknown names are ignored.
func (c *Config) decodeSettings(b []byte, strict bool) error {
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
				return fmt.Errorf("hedge: Config: %s: %s is not %s", settingNames[i], sanitize.CleanText(string(given[name])), describeKind(field))
			}
		case strict:
			return fmt.Errorf("hedge: Config: %q is no setting; there are %s", sanitize.CleanText(name), strings.Join(settingNames, ", "))
		}
	}
	*c = read
	return nil
}

// settingNames are the JSON names of the fields of Config, in their order.
var settingNames = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}()

// readSetting decodes text into the field of Config that field points to.
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

// describeKind returns the kind of value that the field of Config accepts to which field points, as text for errors.
func describeKind(field any) string {
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

// A numberRange is the set of valid values of a numeric field of [Config]. NaN is in no range.
type numberRange struct {
	want      string // the range as text: "in [0, 1)"
	low, high float64
	open      bool // excludes high
	unset     bool // includes Unset
}

// finite is the range of the finite numbers that are at least 0.
var finite = numberRange{want: "finite and at least 0", high: math.MaxFloat64}

// rangeFrom returns the range of the numbers >= low.
func rangeFrom(low float64) numberRange {
	return numberRange{want: fmt.Sprintf("at least %v", low), low: low, high: math.Inf(1)}
}

// closedRange returns the closed range [low, high].
func closedRange(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v]", low, high), low: low, high: high}
}

// halfOpenRange returns the range [low, high), without high.
func halfOpenRange(low, high float64) numberRange {
	return numberRange{want: fmt.Sprintf("in [%v, %v)", low, high), low: low, high: high, open: true}
}

// withUnset returns r with [Unset] as an additional valid value.
func (r numberRange) withUnset() numberRange {
	r.want, r.unset = r.want+", or Unset", true
	return r
}

// contains reports whether x is in the range.
func (r numberRange) contains(x float64) bool {
	return r.unset && x == Unset || x >= r.low && x <= r.high && !(r.open && x == r.high)
}
