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

// A Config holds the settings that can be read from a file or flags. The option with the name of a field, such as
// [WithMaxHedges] for MaxHedges, documents the setting. Start from [DefaultConfig], because the zero Config is not
// valid.
//
// A setting of 0 means zero, not the default: with 0 for MaxHedges, BudgetPercent or MaxHedgesPerSecond, no hedges
// are sent.
//
// In JSON and YAML, durations are strings such as "10ms". In JSON, an unknown name is an error, and so is a duration
// without a unit. A YAML decoder adds the line to an error. It rejects unknown names only if asked to, for example by
// KnownFields(true).
//
// [Unset] is the default of MaxDelay, InitialDelay and MaxHedgesPerSecond. In a file it is "-1ns" for durations, and
// -1 for MaxHedgesPerSecond.
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

// Unset is the value of [Config].MaxDelay, InitialDelay and MaxHedgesPerSecond that disables the setting: no maximum
// delay, no hedges of the first ten calls, no limit per second.
const Unset = -1

// numericSettings lists the numeric fields of Config. Each entry has the default, the valid range, and a function that
// copies the field to the configuration of package policy. The function is nil if package policy does not use the
// field.
//
// A new setting needs a field of Config, an entry here, and an option. If package policy uses the setting, it also needs a
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
	{"EstimatedRPS", 100.0, finiteRange, func(e *policy.Config, c *Config) { e.EstimatedRPS = c.EstimatedRPS }},
	{"MinDelay", time.Millisecond, rangeFrom(0), func(e *policy.Config, c *Config) { e.MinDelay = c.MinDelay }},
	{"MaxDelay", time.Duration(Unset), rangeFrom(0).withUnset(), func(e *policy.Config, c *Config) { e.MaxDelay = policyDelay(c.MaxDelay) }},
	{"InitialDelay", time.Duration(Unset), rangeFrom(0).withUnset(), func(e *policy.Config, c *Config) { e.InitialDelay = policyDelay(c.InitialDelay) }},
	{"Burst", 2 * time.Second, rangeFrom(0), func(e *policy.Config, c *Config) { e.Burst = c.Burst }},
	{"MaxHedgesPerSecond", float64(Unset), finiteRange.withUnset(), func(e *policy.Config, c *Config) { e.MaxPerSecond = max(c.MaxHedgesPerSecond, 0) }},
	{"MaxKeys", 4096, rangeFrom(1), func(e *policy.Config, c *Config) { e.MaxKeys = c.MaxKeys }},
	{"Linger", time.Second, rangeFrom(0), nil},
	{"MaxReplayBytes", int64(64 << 10), rangeFrom(0), nil},
}

// numberFieldIndexes[i] is the index of the field that numericSettings[i] describes among the fields of Config, as
// reflect counts them.
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

// policyDelay converts a delay in Config to a delay in policy.Config, where 0 means that the delay is not set. So
// Unset becomes 0, and 0 becomes 1ns.
func policyDelay(d time.Duration) time.Duration {
	if d == Unset {
		return 0
	}
	return max(d, 1)
}

// hedgesAllowed returns the maximum number of hedges per call: MaxHedges, or 0 if the limit of hedges per second is 0.
func (c *Config) hedgesAllowed() int {
	if c.MaxHedgesPerSecond == 0 {
		return 0
	}
	return c.MaxHedges
}

// DefaultConfig returns the settings of a client without options. Use it as the start of a [Config].
func DefaultConfig() Config {
	var c Config
	fields := reflect.ValueOf(&c).Elem()
	for i, n := range numericSettings {
		fields.Field(numberFieldIndexes[i]).Set(reflect.ValueOf(n.defaultValue))
	}
	return c
}

// Validate returns nil if c is valid. Otherwise the error names the first field that has an invalid value, or a value
// that conflicts with another field, and the value. If c does not seem to start from [DefaultConfig], the error
// mentions that function too.
func (c Config) Validate() error {
	err := c.validateFields()
	if err == nil {
		err = c.validateTogether()
	}
	if err != nil && c.lacksDefaults() {
		return fmt.Errorf("%w; start from DefaultConfig()", err)
	}
	return err
}

// validateTogether checks the delays against each other. It returns an error if MaxDelay or InitialDelay is less than
// MinDelay, or if InitialDelay is more than MaxDelay.
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

// lacksDefaults reports whether c was probably not made by [DefaultConfig], so that an error text should recommend
// that function. This is so if MaxKeys and at least one other field are zero although their defaults are not.
func (c *Config) lacksDefaults() bool {
	zeros, fields := 0, reflect.ValueOf(c).Elem()
	for i, n := range numericSettings {
		if fields.Field(numberFieldIndexes[i]).IsZero() && !reflect.ValueOf(n.defaultValue).IsZero() {
			zeros++
		}
	}
	return c.MaxKeys == 0 && zeros > 1
}

// newFieldError returns the error for an invalid field of Config. The text shows the value, and the requirement want,
// such as "in [0, 1)".
func newFieldError(field string, value any, want string) error {
	return fmt.Errorf("hedge: Config.%s: %v is not %s", field, value, want)
}

// validateFields checks each field of c separately, and returns an error for the first invalid one. It returns nil if
// all fields are valid. Conflicts between fields are found by validateTogether.
func (c *Config) validateFields() error {
	fields := reflect.ValueOf(c).Elem()
	for i, n := range numericSettings {
		field := fields.Field(numberFieldIndexes[i])
		if x := field.Convert(reflect.TypeFor[float64]()).Float(); !n.bounds.contains(x) {
			return newFieldError(n.field, field.Interface(), n.bounds.description)
		}
	}
	if want := checkAttemptHeader(c.AttemptHeader); want != "" {
		return newFieldError("AttemptHeader", strconv.Quote(c.AttemptHeader), want)
	}
	return nil
}

// callSettings returns the settings in c that package calls needs, such as MaxHedges and Linger.
func (c *Config) callSettings() calls.Settings {
	return calls.Settings{MaxHedges: c.hedgesAllowed(), MaxReplayBytes: c.MaxReplayBytes, Linger: c.Linger, AttemptHeader: c.AttemptHeader}
}

// policyConfig returns the settings in c that package policy needs, such as Percentile. Options that are not part of a
// Config are not set.
func (c *Config) policyConfig() policy.Config {
	e := policy.Config{HasShortBucket: true}
	for _, n := range numericSettings {
		if n.copyTo != nil {
			n.copyTo(&e, c)
		}
	}
	return e
}

// MarshalJSON encodes all settings as a JSON object. Durations are strings such as "10ms".
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

// UnmarshalJSON sets the fields of c that the JSON object b contains; the other fields keep their values. Durations are
// strings such as "10ms", or the number 0. If a name is unknown or a value has the wrong type, the error names both,
// and c does not change.
func (c *Config) UnmarshalJSON(b []byte) error { return c.decodeSettings(b, true) }

// decodeSettings implements UnmarshalJSON: it sets the fields of c that the JSON object b contains. If strict is
// false, unknown names are ignored, so that newer versions may add settings.
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
		i := settingIndex(name)
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

// settingNames are the JSON names of the fields of Config, in the order of the fields.
var settingNames = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}()

// settingIndex returns the index of the field of Config with the given JSON name, or -1 if there is none. As in package json,
// upper and lower case are the same.
func settingIndex(name string) int {
	return slices.IndexFunc(settingNames, func(known string) bool { return strings.EqualFold(known, name) })
}

// readSetting decodes the JSON value text into a field of Config. The argument field is a pointer to that field. It
// returns an error if text has the wrong type.
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

// describeKind returns a text for errors that says which values a field of Config accepts, such as "a number". The
// argument field is a pointer to that field.
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

// A numberRange is the set of valid values of a numeric field of [Config]: the numbers from low to high. NaN is in no
// range.
type numberRange struct {
	description   string  // the range as text for errors, such as "in [0, 1)"
	low, high     float64 // bounds of the range
	excludesHigh  bool    // true if high itself is not valid
	includesUnset bool    // true if Unset is valid, too
}

// finiteRange is the range of all finite numbers that are at least 0.
var finiteRange = numberRange{description: "finite and at least 0", high: math.MaxFloat64}

// rangeFrom returns the range of all numbers that are at least low, without an upper bound.
func rangeFrom(low float64) numberRange {
	return numberRange{description: fmt.Sprintf("at least %v", low), low: low, high: math.Inf(1)}
}

// closedRange returns the range [low, high], which includes both bounds.
func closedRange(low, high float64) numberRange {
	return numberRange{description: fmt.Sprintf("in [%v, %v]", low, high), low: low, high: high}
}

// halfOpenRange returns the range [low, high), which includes low and excludes high.
func halfOpenRange(low, high float64) numberRange {
	return numberRange{description: fmt.Sprintf("in [%v, %v)", low, high), low: low, high: high, excludesHigh: true}
}

// withUnset returns a copy of r in which [Unset] is valid, too.
func (r numberRange) withUnset() numberRange {
	r.description, r.includesUnset = r.description+", or Unset", true
	return r
}

// contains reports whether x is in the range, so that it is a valid value of the field.
func (r numberRange) contains(x float64) bool {
	return r.includesUnset && x == Unset || x >= r.low && x <= r.high && !(r.excludesHigh && x == r.high)
}

// checkAttemptHeader checks the name of an attempt header. It returns "" if the name is valid; otherwise it returns the
// violated requirement as text. A valid name is empty, or a token (RFC 9110, section 5.1) without a meaning in HTTP. So
// the header cannot change the meaning of a request.
func checkAttemptHeader(name string) (want string) {
	switch lower := strings.ToLower(name); {
	case strings.IndexFunc(name, func(r rune) bool { return !isTokenChar(r) }) >= 0:
		return "the name of a header"
	case slices.Contains(reservedHeaders, lower), slices.ContainsFunc(reservedHeaderPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }):
		return "the name of a header that HTTP leaves free"
	}
	return ""
}

// isTokenChar reports whether r may be part of an HTTP header name: a tchar of RFC 9110, section 5.6.2.
func isTokenChar(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// reservedHeaders lists header names, in lower case, that must not be used for attempt numbers because they have a
// meaning in HTTP.
var reservedHeaders = []string{
	// RFC 9110, section 18.4, of requests and of answers
	"accept", "allow", "authentication-info", "authorization", "connection",
	"date", "etag", "expect", "from", "host", "last-modified", "location", "max-forwards", "range", "referer", "retry-after", "server", "te", "trailer",
	"upgrade", "user-agent", "vary", "via", "www-authenticate", "*",
	"age", "cache-control", "expires", "pragma", "warning", // RFC 9111
	"close", "mime-version", "transfer-encoding", // RFC 9112
	"keep-alive", "http2-settings", // of one connection
	"cookie", "set-cookie", // RFC 6265
	"idempotency-key", "x-idempotency-key", // net/http repeats requests with these
	"alt-used", "cdn-loop", "client-cert", "client-cert-chain", "early-data", "forwarded", "last-event-id", "origin", "priority", "x-real-ip", // read by servers and proxies
	"dav", "depth", "destination", "lock-token", "overwrite", "timeout", // RFC 4918
	"a-im", "available-dictionary", "dictionary-id", "dnt", "dpop", "digest", "im", "link", "negotiate", "prefer", "repr-digest", "save-data", "service-worker",
	"signature", "signature-input", "slug", "soapaction", "tcn", "upgrade-insecure-requests", // other registered names that servers act on
	"baggage", "traceparent", "tracestate", // of tracing
	"x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url", // in the place of method and target
}

// reservedHeaderPrefixes lists prefixes of header names, such as accept- in Accept-Encoding, that must not be used for
// attempt numbers. Object stores reject a signed request if it has an unsigned header with their prefix, such as
// x-amz-.
var reservedHeaderPrefixes = []string{"accept-", "access-control-", "content-", "if-", "proxy-", "sec-", "want-", "x-amz-", "x-forwarded-", "x-goog-", "x-ms-"}
