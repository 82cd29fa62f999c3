// Package serviceconfig parses the hedging policies and retry throttling of gRPC service configs (gRFC A6), which grpc-go
// accepts and ignores. Errors name the path and the value of an invalid hedgingPolicy.
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

// maxAttempts is the maximum of the field maxAttempts. A larger value counts as the maximum (gRFC A6, Limits on Retries and Hedges).
const maxAttempts = 5

// A HedgingPolicy is the hedgingPolicy of a method. It is immutable.
type HedgingPolicy struct {
	Path        string // for example "methodConfig[0].hedgingPolicy"
	MaxAttempts int    // 2 to 5
	HasDelay    bool   // hedgingDelay is set
	Delay       time.Duration

	nonFatalCodes uint32 // bit set of codes
}

// IsNonFatal reports whether hedges go on after an attempt that failed with the code.
func (p *HedgingPolicy) IsNonFatal(c codes.Code) bool { return c < 32 && p.nonFatalCodes>>c&1 != 0 }

// RetryThrottling is the field retryThrottling, in millionths of a token.
type RetryThrottling struct{ MaxTokens, TokenRatio int64 }

const oneToken = 1_000_000

// A Config is a parsed service config. It is immutable.
type Config struct {
	Throttling    *RetryThrottling // nil: none
	UnknownFields []string         // paths of fields of hedging policies that gRFC A6 does not define
	IgnoredValues []string         // path and value of fields that gRPC accepts and this package cannot use

	text    string
	methods map[string]methodConfig // keys: "/service/method", "/service/" and ""
}

// methodConfig is an entry of the field methodConfig.
type methodConfig struct {
	hedging        *HedgingPolicy // nil: none
	hasRetryPolicy bool
}

// HedgingPolicy returns the hedging policy of a method with a full name such as "/pkg.Service/Method", or nil. The entry for the method precedes the
// entry for its service, and that precedes the entry for all methods.
func (c *Config) HedgingPolicy(full string) *HedgingPolicy { return c.findMethod(full).hedging }

// HasRetryPolicy reports whether gRPC itself retries failed calls of a method.
func (c *Config) HasRetryPolicy(full string) bool { return c.findMethod(full).hasRetryPolicy }

// findMethod returns the entry that applies to a method with the given full name.
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

// CountHedgingPolicies returns the number of methods and services with a hedging policy. An entry for all methods counts as one.
func (c *Config) CountHedgingPolicies() (n int) {
	for _, m := range c.methods {
		if m.hedging != nil {
			n++
		}
	}
	return n
}

// Parse parses a service config. It accepts the configs that gRPC accepts, except those with an invalid hedgingPolicy.
func Parse(text string) (*Config, error) {
	if err := checkWithGRPC(text); err != nil {
		return nil, err
	}
	return parseAccepted(text)
}

// checkWithGRPC returns the error with which gRPC rejects a service config, or nil.
func checkWithGRPC(text string) error {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err != nil {
		return err
	}
	return conn.Close()
}

// configFields are the fields of a service config that this package uses. They have the types that grpc-go decodes into. So duplicate fields, null
// and the case of names have the same meaning.
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

// parseHedgingPolicy parses the hedgingPolicy of an entry. It returns nil if there is none.
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

// setThrottling sets the field retryThrottling. It ignores invalid values: gRPC does not check them in a config without methodConfig.
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

// toMicroTokens returns tokens in millionths, at least 1.
func toMicroTokens(tokens float64) int64 { return max(int64(math.Round(tokens*oneToken)), 1) }

// Equal reports whether two configs have the same text. Either may be nil.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.text == other.text
}

// parseCode parses the name or number of a status code. It is not ok for the code OK.
func (v value) parseCode() (c codes.Code, ok bool) {
	if !v.isSet() || c.UnmarshalJSON(v.raw) != nil {
		return 0, false
	}
	return c, c != codes.OK
}

// parseDuration parses a Duration of proto3 in JSON, such as "1.5s". Negative durations are not ok.
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
