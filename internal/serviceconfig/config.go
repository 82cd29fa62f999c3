// Package serviceconfig parses the hedging policies and the retry throttling in gRPC service configs (gRFC A6), because
// grpc-go accepts these fields and ignores them. Errors name the path and the value of an invalid hedgingPolicy.
package serviceconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gohedge/hedge/internal/sanitize"
)

// maxAttempts is the largest effective value of the field maxAttempts. Larger values count as this value (gRFC A6,
// Limits on Retries and Hedges).
const maxAttempts = 5

// A HedgingPolicy holds the parsed field hedgingPolicy of a method. It is immutable.
type HedgingPolicy struct {
	Path        string        // path of the field in the config, such as "methodConfig[0].hedgingPolicy"
	MaxAttempts int           // largest number of attempts, 2 to 5; the primary counts
	HasDelay    bool          // the field hedgingDelay is set
	Delay       time.Duration // value of hedgingDelay; 0 if not set

	nonFatalCodes uint32 // bit set, indexed by status code
}

// IsNonFatal reports whether nonFatalStatusCodes contains c. If so, a call goes on with hedges after an attempt has
// failed with c.
func (p *HedgingPolicy) IsNonFatal(c codes.Code) bool { return c < 32 && p.nonFatalCodes>>c&1 != 0 }

// A RetryThrottling holds the parsed field retryThrottling. Both values are in millionths of a token: the capacity of
// the token bucket, and the amount that a successful call adds.
type RetryThrottling struct{ MaxTokens, TokenRatio int64 }

// microTokensPerToken is the value of one token in millionths of a token.
const microTokensPerToken = 1_000_000

// A Config is a parsed service config. It is immutable. A nil Config has no hedging policies and no throttling.
type Config struct {
	Throttling    *RetryThrottling // retry throttling; nil if there is none
	UnknownFields []string         // paths of fields in hedging policies that gRFC A6 does not define
	IgnoredValues []string         // texts that describe values which gRPC accepts and hedging cannot use

	text    string                  // the config in JSON
	methods map[string]methodConfig // keyed by "/service/method", by "/service/" for all methods of a service, or by "" for all methods
}

// A methodConfig holds the settings of an entry in the field methodConfig that this package uses.
type methodConfig struct {
	hedging        *HedgingPolicy // nil if the entry has no hedgingPolicy
	hasRetryPolicy bool           // the entry has a retryPolicy
}

// HedgingPolicy returns the hedging policy of the method with the given full name, such as "/pkg.Service/Method". It
// returns nil if there is none. An entry for the method takes precedence over an entry for its service. An entry for
// all methods comes last.
func (c *Config) HedgingPolicy(full string) *HedgingPolicy { return c.findMethodConfig(full).hedging }

// HasRetryPolicy reports whether the method with the given full name has a retryPolicy. If so, gRPC retries its failed
// calls.
func (c *Config) HasRetryPolicy(full string) bool { return c.findMethodConfig(full).hasRetryPolicy }

// findMethodConfig returns the entry of the field methodConfig that applies to the method with the given full name. It
// returns the zero value if no entry applies.
func (c *Config) findMethodConfig(full string) methodConfig {
	if c == nil {
		return methodConfig{}
	}
	for _, name := range [...]string{full, full[:strings.LastIndexByte(full, '/')+1], ""} {
		if m, ok := c.methods[name]; ok {
			return m
		}
	}
	return methodConfig{}
}

// CountHedgingPolicies returns the number of names in c that have a hedging policy, for log records. A name denotes a
// method, a service, or all methods.
func (c *Config) CountHedgingPolicies() (n int) {
	for _, m := range c.methods {
		if m.hedging != nil {
			n++
		}
	}
	return n
}

// Parse parses a service config in JSON. It returns an error for configs that gRPC rejects, and for configs with an
// invalid hedgingPolicy.
func Parse(text string) (*Config, error) {
	if err := checkWithGRPC(text); err != nil {
		return nil, err
	}
	return parseAccepted(text)
}

// checkWithGRPC returns the error by which gRPC rejects a service config. It returns nil if gRPC accepts the config.
func checkWithGRPC(text string) error {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err != nil {
		return err
	}
	return conn.Close()
}

// A configFields has the fields of a service config that this package uses. It has the same field types as grpc-go, so
// that duplicate fields, null and the case of names are handled in the same way.
type configFields struct {
	MethodConfig *[]struct {
		Name *[]struct {
			Service, Method string
		}
		RetryPolicy   json.RawMessage
		HedgingPolicy json.RawMessage
	}
	RetryThrottling *struct {
		MaxTokens, TokenRatio float64
	}
}

// parseAccepted parses a service config that gRPC has accepted. It returns an error if a hedgingPolicy is invalid.
func parseAccepted(text string) (*Config, error) {
	c := &Config{text: text, methods: make(map[string]methodConfig)}
	var f configFields
	if err := json.Unmarshal([]byte(text), &f); err != nil { // gRPC accepts types that this package does not
		c.IgnoredValues = append(c.IgnoredValues, sanitize.CleanText(err.Error()))
		return c, nil
	}
	if f.MethodConfig != nil {
		for i, e := range *f.MethodConfig {
			path := fmt.Sprintf("methodConfig[%d].", i)
			hedging, err := c.parseHedgingPolicy(jsonValue{path + "hedgingPolicy", e.HedgingPolicy})
			if err != nil {
				return nil, err
			}
			retry := jsonValue{path + "retryPolicy", e.RetryPolicy}
			if retry.isSet() && hedging != nil {
				return nil, retry.newInvalidError("allowed beside a hedgingPolicy")
			}
			if e.Name == nil {
				continue
			}
			for _, n := range *e.Name {
				full := ""
				if n.Service != "" {
					full = "/" + n.Service + "/" + n.Method
				}
				c.methods[full] = methodConfig{hedging, retry.isSet()}
			}
		}
	}
	if t := f.RetryThrottling; t != nil {
		c.setThrottling(t.MaxTokens, t.TokenRatio)
	}
	return c, nil
}

// parseHedgingPolicy parses the value of a field hedgingPolicy. It returns nil and no error if the field is not set. It
// adds unknown fields to c.UnknownFields.
func (c *Config) parseHedgingPolicy(policy jsonValue) (*HedgingPolicy, error) {
	h, err := policy.parseObject()
	if err != nil || h == nil {
		return nil, err
	}
	p := &HedgingPolicy{Path: h.path}
	attempts := h.field("maxAttempts")
	n, ok := attempts.parseNumber()
	if !ok || n < 2 || n != math.Trunc(n) {
		return nil, attempts.newInvalidError("an integer above 1")
	}
	p.MaxAttempts = int(min(n, maxAttempts))
	if delay := h.field("hedgingDelay"); delay.isSet() {
		if p.Delay, ok = delay.parseDuration(); !ok {
			return nil, delay.newInvalidError(`a duration such as "0.05s" that is not negative`)
		}
		p.HasDelay = true
	}
	list, err := h.parseArray("nonFatalStatusCodes")
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		code, ok := v.parseCode()
		if !ok {
			return nil, v.newInvalidError("the name of a status code that is a failure")
		}
		p.nonFatalCodes |= 1 << code
	}
	for _, name := range h.fieldNames() {
		if !slices.ContainsFunc([]string{"maxAttempts", "hedgingDelay", "nonFatalStatusCodes"}, func(known string) bool { return strings.EqualFold(known, name) }) {
			c.UnknownFields = append(c.UnknownFields, h.path+"."+sanitize.CleanText(name))
		}
	}
	return p, nil
}

// setThrottling sets c.Throttling from maxTokens and tokenRatio of the field retryThrottling, in tokens. If a value is
// invalid, it adds a text to c.IgnoredValues instead, because gRPC does not check these values in a config without
// methodConfig.
func (c *Config) setThrottling(tokens, ratio float64) {
	switch {
	case tokens <= 0 || tokens > 1000:
		c.IgnoredValues = append(c.IgnoredValues, fmt.Sprintf("retryThrottling.maxTokens: %v is not above 0 and at most 1000", tokens))
	case ratio <= 0:
		c.IgnoredValues = append(c.IgnoredValues, fmt.Sprintf("retryThrottling.tokenRatio: %v is not above 0", ratio))
	default:
		c.Throttling = &RetryThrottling{MaxTokens: toMicroTokens(tokens), TokenRatio: toMicroTokens(min(ratio, 1000))}
	}
}

// toMicroTokens converts tokens to millionths of a token. The result is at least 1, so that a positive ratio does not
// become 0.
func toMicroTokens(tokens float64) int64 {
	return max(int64(math.Round(tokens*microTokensPerToken)), 1)
}

// Equal reports whether c and other were parsed from the same text, or are both nil.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.text == other.text
}

// parseCode parses a gRPC status code, which may be a name or a number. The result ok is false if the value is not a
// status code, or is OK.
func (v jsonValue) parseCode() (c codes.Code, ok bool) {
	if !v.isSet() || c.UnmarshalJSON(v.raw) != nil {
		return 0, false
	}
	return c, c != codes.OK
}

// parseDuration parses the JSON form of a protobuf Duration, such as "1.5s". The second result is false if the value is
// invalid or negative.
func (v jsonValue) parseDuration() (time.Duration, bool) {
	var s string
	if json.Unmarshal(v.raw, &s) != nil {
		return 0, false
	}
	number, ok := strings.CutSuffix(s, "s")
	whole, part, _ := strings.Cut(number, ".")
	if !ok || whole+part == "" || strings.Trim(whole+part, "0123456789") != "" || len(part) > 9 {
		return 0, false
	}
	seconds, err := strconv.ParseInt("0"+whole, 10, 64)
	nanos, _ := strconv.ParseInt("0"+part+strings.Repeat("0", 9-len(part)), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), seconds > 315_576_000_000: // the longest Duration
		return 0, false
	case seconds >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64, true
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos), true
}
