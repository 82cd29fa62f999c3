package serviceconfig

import (
	"maps"
	"sync"
	"sync/atomic"
)

// An ActiveConfig is a service config that is in force. It is safe for concurrent use.
type ActiveConfig struct {
	*Config        // nil: no config is in force
	Source  string // origin of the config, for logs

	Methods MethodCache // caches data of package grpccall about methods while the config is in force

	throttles *throttleMap // nil: no retry throttling
}

// HasThrottling reports whether the config has a valid retryThrottling.
func (l *ActiveConfig) HasThrottling() bool { return l.throttles != nil }

// ThrottleFor returns the throttle of a target, or nil if the config has no retryThrottling. The target is a name by
// package grpctarget.
func (l *ActiveConfig) ThrottleFor(target string) *Throttle {
	if l.throttles == nil {
		return nil
	}
	return l.throttles.throttleFor(target)
}

// newActiveConfig returns an ActiveConfig of c, which replaces old. Throttles keep their tokens if their settings do
// not change. Both c and old may be nil.
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

// A Registry stores the service configs in force: a default, and one for each target whose resolver has sent one.
// SetDefault must be called first. Then it is safe for concurrent use.
type Registry struct {
	mu      sync.Mutex // held while current is replaced
	current atomic.Pointer[snapshot]
}

// A snapshot is the immutable content of a [Registry].
type snapshot struct {
	defaultConfig *ActiveConfig
	byTarget      map[string]*ActiveConfig // keyed by name of package grpctarget
}

// SetDefault sets the config of targets whose resolver has sent none. It reports whether c differs from the previous
// default. A nil c means no config.
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

// setTarget sets the config of a target, and reports whether c differs from the previous one. The target is a name by
// package grpctarget.
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

// Default returns the config of targets whose resolver has sent none.
func (r *Registry) Default() *ActiveConfig { return r.current.Load().defaultConfig }

// ConfigFor returns the config in force for a target, which is a name by package grpctarget.
func (r *Registry) ConfigFor(target string) *ActiveConfig {
	s := r.current.Load()
	if config := s.byTarget[target]; config != nil {
		return config
	}
	return s.defaultConfig
}
