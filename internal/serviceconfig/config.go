// Package serviceconfig reads what a gRPC service config says of hedging, which grpc-go takes and ignores: gRFC A6. It
// refuses a hedgingPolicy that A6 forbids, with the path and the value.
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

	"github.com/gohedge/hedge/internal/label"
)

// maxAttempts is what a larger maxAttempts counts as (gRFC A6, Limits on Retries and Hedges).
const maxAttempts = 5

// A Policy is the hedgingPolicy of a method. It does not change.
type Policy struct {
	Path     string // "methodConfig[0].hedgingPolicy"
	Attempts int    // 2 to 5
	Delayed  bool   // there is a hedgingDelay
	Delay    time.Duration

	nonFatal uint32 // a bit for each code
}

// NonFatal reports whether another attempt may succeed after one that has failed with the code.
func (p *Policy) NonFatal(c codes.Code) bool { return c < 32 && p.nonFatal>>c&1 != 0 }

// A Throttling is retryThrottling, in millionths of tokens.
type Throttling struct{ Max, Ratio int64 }

const oneToken = 1_000_000

// A Config is what a service config says. It does not change.
type Config struct {
	Throttling *Throttling // nil: none
	Unknown    []string    // paths of fields of hedging policies that gRFC A6 does not know
	Ignored    []string    // values that gRPC accepts and hedging does not use, each with its path

	text    string
	methods map[string]method // by "/service/method", "/service/" and ""
}

// method is what an entry of methodConfig says.
type method struct {
	hedging *Policy // nil: none
	retries bool    // it has a retryPolicy
}

// Policy returns the hedging policy of a method with a full name such as "/pkg.Service/Method", nil if it has none: that of the
// entry for the method, or else of that for its service, or else of that for all.
func (c *Config) Policy(full string) *Policy { return c.find(full).hedging }

// Retries reports whether gRPC itself repeats calls of a method that fail.
func (c *Config) Retries(full string) bool { return c.find(full).retries }

func (c *Config) find(full string) method {
	if c == nil {
		return method{}
	}
	for _, name := range [...]string{full, full[:strings.LastIndexByte(full, '/')+1], ""} {
		if m, ok := c.methods[name]; ok {
			return m
		}
	}
	return method{}
}

// Policies returns how many methods and services have a hedging policy; all others count as one.
func (c *Config) Policies() (n int) {
	for _, m := range c.methods {
		if m.hedging != nil {
			n++
		}
	}
	return n
}

// Parse reads a service config. It accepts the configs that gRPC accepts, unless they have an invalid hedgingPolicy.
func Parse(text string) (*Config, error) {
	if err := accepted(text); err != nil {
		return nil, err
	}
	return read(text)
}

// accepted returns why gRPC does not accept a service config, nil if it does.
func accepted(text string) error {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err != nil {
		return err
	}
	return conn.Close()
}

// fields are the fields of a service config that are read. They are decoded into the types that grpc-go decodes them into, so
// that fields which are given twice, null and the cases of names mean the same.
type fields struct {
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

// read reads a service config that gRPC accepts.
func read(text string) (*Config, error) {
	c := &Config{text: text, methods: make(map[string]method)}
	var f fields
	if err := json.Unmarshal([]byte(text), &f); err != nil { // gRPC has become more tolerant
		c.Ignored = append(c.Ignored, label.Clean(err.Error()))
		return c, nil
	}
	if f.MethodConfig != nil {
		for i, e := range *f.MethodConfig {
			path := fmt.Sprintf("methodConfig[%d].", i)
			hedging, err := c.hedging(value{path + "hedgingPolicy", e.HedgingPolicy})
			if err != nil {
				return nil, err
			}
			retry := value{path + "retryPolicy", e.RetryPolicy}
			if retry.given() && hedging != nil {
				return nil, retry.wrong("allowed beside a hedgingPolicy")
			}
			if e.Name == nil {
				continue
			}
			for _, n := range *e.Name {
				full := ""
				if n.Service != "" {
					full = "/" + n.Service + "/" + n.Method
				}
				c.methods[full] = method{hedging, retry.given()}
			}
		}
	}
	if t := f.RetryThrottling; t != nil {
		c.throttling(t.MaxTokens, t.TokenRatio)
	}
	return c, nil
}

// hedging reads the hedgingPolicy of an entry, nil if it has none.
func (c *Config) hedging(policy value) (*Policy, error) {
	h, err := policy.object()
	if err != nil || h == nil {
		return nil, err
	}
	p := &Policy{Path: h.path}
	attempts := h.field("maxAttempts")
	n, ok := attempts.number()
	if !ok || n < 2 || n != math.Trunc(n) {
		return nil, attempts.wrong("an integer above 1")
	}
	p.Attempts = int(min(n, maxAttempts))
	if delay := h.field("hedgingDelay"); delay.given() {
		if p.Delay, ok = delay.duration(); !ok {
			return nil, delay.wrong(`a duration such as "0.05s" that is not negative`)
		}
		p.Delayed = true
	}
	list, err := h.array("nonFatalStatusCodes")
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		code, ok := v.code()
		if !ok {
			return nil, v.wrong("the name of a status code that is a failure")
		}
		p.nonFatal |= 1 << code
	}
	for _, name := range h.names() {
		if !slices.ContainsFunc([]string{"maxAttempts", "hedgingDelay", "nonFatalStatusCodes"}, func(known string) bool { return strings.EqualFold(known, name) }) {
			c.Unknown = append(c.Unknown, h.path+"."+label.Clean(name))
		}
	}
	return p, nil
}

// throttling takes over retryThrottling. gRPC does not check the values of a config without methodConfig.
func (c *Config) throttling(tokens, ratio float64) {
	switch {
	case tokens <= 0 || tokens > 1000:
		c.Ignored = append(c.Ignored, fmt.Sprintf("retryThrottling.maxTokens: %v is not above 0 and at most 1000", tokens))
	case ratio <= 0:
		c.Ignored = append(c.Ignored, fmt.Sprintf("retryThrottling.tokenRatio: %v is not above 0", ratio))
	default:
		c.Throttling = &Throttling{Max: inUnits(tokens), Ratio: inUnits(min(ratio, 1000))}
	}
}

// inUnits returns tokens in units of a Throttling, at least 1.
func inUnits(tokens float64) int64 { return max(int64(math.Round(tokens*oneToken)), 1) }

// Equal reports whether two configs have the same text. Either may be nil.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.text == other.text
}

// code reads a status code that is a failure, by its name or number.
func (v value) code() (c codes.Code, ok bool) {
	if !v.given() || c.UnmarshalJSON(v.raw) != nil {
		return 0, false
	}
	return c, c != codes.OK
}

// duration reads a Duration of proto3: a decimal number of seconds, and an s.
func (v value) duration() (time.Duration, bool) {
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
