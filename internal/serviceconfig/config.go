// Package serviceconfig reads what a gRPC service config says of hedging, which grpc-go takes and ignores: gRFC A6. It
// refuses what that forbids, with the path and the value.
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

// A Throttling is retryThrottling, in thousandths of tokens.
type Throttling struct{ Max, Ratio int64 }

// A Config is what a service config says. It does not change.
type Config struct {
	Throttling *Throttling // nil: none
	Unknown    []string    // paths of fields of hedging policies that gRFC A6 does not know

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

// Parse reads a service config. It accepts none that gRPC does not.
func Parse(text string) (*Config, error) {
	c := &Config{text: text, methods: make(map[string]method)}
	if !json.Valid([]byte(text)) {
		var v any
		return nil, fmt.Errorf("it is no JSON: %w", json.Unmarshal([]byte(text), &v))
	}
	top, err := objectAt("", json.RawMessage(text), nil)
	if err != nil {
		return nil, err
	}
	entries, err := top.array("methodConfig")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := c.entry(e); err != nil {
			return nil, err
		}
	}
	if err := c.throttling(top); err != nil {
		return nil, err
	}
	if err := accepted(text); err != nil {
		return nil, err
	}
	return c, nil
}

// accepted returns why gRPC does not accept a service config, nil if it does.
func accepted(text string) error {
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
	if err != nil {
		return err
	}
	return conn.Close()
}

// entry reads an element of methodConfig.
func (c *Config) entry(v value) error {
	e, err := v.object()
	if err != nil || e == nil {
		return err
	}
	var m method
	if m.hedging, err = c.hedging(e); err != nil {
		return err
	}
	if retry := e.field("retryPolicy"); retry.given() {
		if m.retries = true; m.hedging != nil {
			return retry.wrong("allowed beside a hedgingPolicy")
		}
	}
	names, err := e.array("name")
	if err != nil {
		return err
	}
	for _, n := range names {
		full, err := n.methodName()
		if err != nil {
			return err
		}
		if _, twice := c.methods[full]; twice {
			return n.wrong("a name that no other entry has")
		}
		c.methods[full] = m
	}
	return nil
}

// hedging reads the hedgingPolicy of an entry, nil if it has none.
func (c *Config) hedging(entry *object) (*Policy, error) {
	h, err := entry.field("hedgingPolicy").object()
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

// throttling reads retryThrottling.
func (c *Config) throttling(top *object) error {
	t, err := top.field("retryThrottling").object()
	if err != nil || t == nil {
		return err
	}
	tokens, ratio := t.field("maxTokens"), t.field("tokenRatio")
	n, ok := tokens.number()
	if !ok || n <= 0 || n > 1000 {
		return tokens.wrong("a number above 0 and not above 1000")
	}
	r, ok := ratio.number()
	if r = math.Floor(r*1000 + 1e-6); !ok || r < 1 {
		return ratio.wrong("a number of at least 0.001")
	}
	c.Throttling = &Throttling{Max: max(int64(n*1000+1e-6), 1), Ratio: int64(min(r, 1e6))}
	return nil
}

// Equal reports whether two configs have the same text. Either may be nil.
func (c *Config) Equal(other *Config) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.text == other.text
}

// methodName reads an element of name.
func (v value) methodName() (string, error) {
	n, err := v.object()
	if err != nil {
		return "", err
	}
	service, err := n.text("service")
	if err != nil {
		return "", err
	}
	name, err := n.text("method")
	switch {
	case err != nil:
		return "", err
	case service != "":
		return "/" + service + "/" + name, nil
	case name != "":
		return "", v.wrong("allowed without a service")
	}
	return "", nil
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
