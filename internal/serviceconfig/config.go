// Package serviceconfig parses the hedging policies and the retry throttling in gRPC service configs (gRFC A6). grpc-go
// accepts these fields and ignores them. An error names the path and the value of an invalid hedgingPolicy.
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

// maxAttempts is the largest value of the field maxAttempts. A larger value counts as this value (gRFC A6, Limits on
// Retries and Hedges).
const maxAttempts = 5

// A HedgingPolicy is the parsed field hedgingPolicy of a method. It is immutable.
type HedgingPolicy struct {
	Path        string // for example "methodConfig[0].hedgingPolicy"
	MaxAttempts int    // 2 to 5
	HasDelay    bool   // whether the field hedgingDelay is set
	Delay       time.Duration

	nonFatalCodes uint32 // bit set, indexed by status code
}

// IsNonFatal reports whether c is in nonFatalStatusCodes: hedges continue after an attempt has failed with c.
func (p *HedgingPolicy) IsNonFatal(c codes.Code) bool { return c < 32 && p.nonFatalCodes>>c&1 != 0 }

// A RetryThrottling is the parsed field retryThrottling. Its values are in millionths of a token.
type RetryThrottling struct{ MaxTokens, TokenRatio int64 }

const oneToken = 1_000_000

// A Config is a parsed service config. It is immutable. A nil Config has no policies.
type Config struct {
	Throttling    *RetryThrottling // nil: none
	UnknownFields []string         // paths of fields in hedging policies that gRFC A6 does not define
	IgnoredValues []string         // descriptions of values that gRPC accepts and hedging cannot use

	text    string
	methods map[string]methodConfig // keyed by "/service/method", "/service/" or ""
}

// A methodConfig is the parsed content of an entry in the field methodConfig.
type methodConfig struct {
	hedging        *HedgingPolicy // nil: none
	hasRetryPolicy bool
}

// HedgingPolicy returns the hedging policy of a method, or nil. The full name of a method is such as
// "/pkg.Service/Method". The entry for the method takes precedence over the entry for its service, which takes
// precedence over the entry for all methods.
func (c *Config) HedgingPolicy(full string) *HedgingPolicy { return c.findMethod(full).hedging }

// HasRetryPolicy reports whether the method has a retryPolicy, so that gRPC retries failed calls.
func (c *Config) HasRetryPolicy(full string) bool { return c.findMethod(full).hasRetryPolicy }

// findMethod returns the entry that applies to the method with the given full name.
func (c *Config) findMethod(full string) methodConfig {
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

// CountHedgingPolicies returns the number of names in the config with a hedging policy. A name is a method, a service,
// or the empty name for all methods.
func (c *Config) CountHedgingPolicies() (n int) {
	for _, m := range c.methods {
		if m.hedging != nil {
			n++
		}
	}
	return n
}

// Parse parses a service config. It rejects the configs that gRPC rejects, and configs with an invalid hedgingPolicy.
func Parse(text string) (*Config, error) {
	if err := checkWithGRPC(text); err != nil {
		return nil, err
	}
	return parseAccepted(text)
}

// checkWithGRPC returns the error with which gRPC rejects a service config, or nil if gRPC accepts it.
func checkWithGRPC(text string) error {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err != nil {
		return err
	}
	return conn.Close()
}

// A configFields has the fields of a service config that this package uses. Their types are those of grpc-go, so that
// duplicate fields, null and the case of names are handled in the same way.
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

// parseAccepted parses a service config that gRPC accepts.
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
			hedging, err := c.parseHedgingPolicy(value{path + "hedgingPolicy", e.HedgingPolicy})
			if err != nil {
				return nil, err
			}
			retry := value{path + "retryPolicy", e.RetryPolicy}
			if retry.isSet() && hedging != nil {
				return nil, retry.invalidError("allowed beside a hedgingPolicy")
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

// parseHedgingPolicy parses the field hedgingPolicy. It returns nil if the field is not set.
func (c *Config) parseHedgingPolicy(policy value) (*HedgingPolicy, error) {
	h, err := policy.parseObject()
	if err != nil || h == nil {
		return nil, err
	}
	p := &HedgingPolicy{Path: h.path}
	attempts := h.field("maxAttempts")
	n, ok := attempts.parseNumber()
	if !ok || n < 2 || n != math.Trunc(n) {
		return nil, attempts.invalidError("an integer above 1")
	}
	p.MaxAttempts = int(min(n, maxAttempts))
	if delay := h.field("hedgingDelay"); delay.isSet() {
		if p.Delay, ok = delay.parseDuration(); !ok {
			return nil, delay.invalidError(`a duration such as "0.05s" that is not negative`)
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
			return nil, v.invalidError("the name of a status code that is a failure")
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

// setThrottling sets c.Throttling from the fields of retryThrottling. It reports invalid values in IgnoredValues: gRPC
// does not check them if there is no methodConfig.
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

// toMicroTokens converts tokens to millionths of a token. The result is at least 1.
func toMicroTokens(tokens float64) int64 { return max(int64(math.Round(tokens*oneToken)), 1) }

// Equal reports whether the configs were parsed from the same text, or are both nil.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.text == other.text
}

// parseCode parses a status code, which is a name or a number. It is not ok if the value is invalid or OK.
func (v value) parseCode() (c codes.Code, ok bool) {
	if !v.isSet() || c.UnmarshalJSON(v.raw) != nil {
		return 0, false
	}
	return c, c != codes.OK
}

// parseDuration parses the JSON form of a protobuf Duration, such as "1.5s". It is not ok if the value is invalid or
// negative.
func (v value) parseDuration() (time.Duration, bool) {
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
