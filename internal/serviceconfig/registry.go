package serviceconfig

import (
	"maps"
	"sync"
	"sync/atomic"
)

// An ActiveConfig is a service config that currently applies to calls, with the throttles and the method data that
// belong to it. It is safe for concurrent use.
type ActiveConfig struct {
	*Config        // nil: no config is in force
	Source  string // origin of the config, for log records

	Methods MethodCache // data that package grpccall caches for each method as long as the config applies

	throttles *throttleMap // nil if the config has no retryThrottling
}

// HasThrottling reports whether the config has a valid retryThrottling, so that ThrottleFor returns a throttle.
func (l *ActiveConfig) HasThrottling() bool { return l.throttles != nil }

// ThrottleFor returns the throttle of a target. It returns nil if the config has no retryThrottling; a nil Throttle
// allows all hedges. The target must be a name that package grpctarget returns.
func (l *ActiveConfig) ThrottleFor(target string) *Throttle {
	if l.throttles == nil {
		return nil
	}
	return l.throttles.throttleFor(target)
}

// newActiveConfig returns an ActiveConfig for c, which replaces old. Both c and old may be nil. The argument source is
// the origin of c, for log records.
//
// If the settings of retryThrottling do not change, the new ActiveConfig keeps the throttles of old with their tokens.
func newActiveConfig(c *Config, source string, old *ActiveConfig) *ActiveConfig {
	l := &ActiveConfig{Config: c, Source: source}
	if c == nil || c.Throttling == nil {
		return l
	}
	if old != nil && old.throttles != nil && old.throttles.settings == *c.Throttling {
		l.throttles = old.throttles
	} else {
		l.throttles = &throttleMap{settings: *c.Throttling}
	}
	return l
}

// A Registry stores the service configs that currently apply: a default config, and a config for each target whose
// resolver has sent one. SetDefault must be called first. After that, a Registry is safe for concurrent use.
type Registry struct {
	mu      sync.Mutex // held while current is replaced
	current atomic.Pointer[snapshot]
}

// A snapshot is the immutable content of a [Registry]. Each change replaces it, so readers need no lock.
type snapshot struct {
	defaultConfig *ActiveConfig            // applies to targets that byTarget does not contain
	byTarget      map[string]*ActiveConfig // keyed by the name that package grpctarget returns
}

// SetDefault sets the config of all targets whose resolver has sent no config. A nil c means no config. The argument
// source is the origin of c, for log records. The result changed is false if c equals the previous default.
func (r *Registry) SetDefault(c *Config, source string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	if old == nil {
		r.current.Store(&snapshot{defaultConfig: newActiveConfig(c, source, nil)})
		return true
	}
	if old.defaultConfig.Config.Equal(c) {
		return false
	}
	r.current.Store(&snapshot{newActiveConfig(c, source, old.defaultConfig), old.byTarget})
	return true
}

// setTarget stores c as the config of a target, after the resolver of the target has sent it. The result changed is
// false if c equals the previous config of the target. The target must be a name that package grpctarget returns.
func (r *Registry) setTarget(target string, c *Config) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	before, found := old.byTarget[target]
	if found && before.Config.Equal(c) {
		return false
	}
	to := maps.Clone(old.byTarget)
	if to == nil {
		to = make(map[string]*ActiveConfig)
	}
	if !found {
		evictIfFull(to)
	}
	to[target] = newActiveConfig(c, "the resolver", before)
	r.current.Store(&snapshot{old.defaultConfig, to})
	return true
}

// Default returns the config of all targets whose resolver has sent no config. It is never nil after SetDefault.
func (r *Registry) Default() *ActiveConfig { return r.current.Load().defaultConfig }

// ConfigFor returns the config that applies to a target: the config that its resolver has sent, or else the default.
// The target must be a name that package grpctarget returns.
func (r *Registry) ConfigFor(target string) *ActiveConfig {
	s := r.current.Load()
	if config := s.byTarget[target]; config != nil {
		return config
	}
	return s.defaultConfig
}
