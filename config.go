package hedge

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/gohedge/hedge/internal/race"
)

// A Config holds the settings that can come from outside a program. Start from
// [DefaultConfig]: the zero value hedges nothing and is not valid. The options
// of the same names say what each setting does. In JSON as in YAML, durations
// are strings like "10ms".
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

// plain is Config without its methods, and its durations shadowed by duration.
type plain Config

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
