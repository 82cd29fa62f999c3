package serviceconfig

import (
	"maps"
	"sync"
	"sync/atomic"
)

// An ActiveConfig is a service config in force. It is safe for concurrent use.
type ActiveConfig struct {
	*Config        // nil: there is no config
	Source  string // who set the config, for logs

	Methods MethodCache // rules of the interceptor for methods, valid while the config is in force

	throttles *throttleMap // nil: no retry throttling
}

// HasThrottling reports whether the config has retry throttling.
func (l *ActiveConfig) HasThrottling() bool { return l.throttles != nil }

// ThrottleFor returns the throttle of a target, which has a name of package grpctarget. It returns nil without retry throttling.
func (l *ActiveConfig) ThrottleFor(target string) *Throttle {
	if l.throttles == nil {
		return nil
	}
	return l.throttles.throttleFor(target)
}

// newActiveConfig returns c as the replacement of old, which may be nil. Throttles with equal settings keep their tokens.
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

// A Registry stores the service configs in force: a default, and one for each target whose resolver has sent a config. It is safe for concurrent use
// after SetDefault.
type Registry struct {
	mu      sync.Mutex // held to replace current
	current atomic.Pointer[snapshot]
}

// A snapshot is immutable.
type snapshot struct {
	defaultConfig *ActiveConfig
	byTarget      map[string]*ActiveConfig // keys are names of package grpctarget
}

// SetDefault sets the config of targets whose resolvers send none, and reports whether it differs from the old one. A nil c is no config.
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

// setTarget sets the config of a target, which has a name of package grpctarget. It reports whether it differs from the old one.
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

// Default returns the config of targets whose resolvers send none.
func (r *Registry) Default() *ActiveConfig { return r.current.Load().defaultConfig }

// ConfigFor returns the config of a target, which has a name of package grpctarget.
func (r *Registry) ConfigFor(target string) *ActiveConfig {
	s := r.current.Load()
	if config := s.byTarget[target]; config != nil {
		return config
	}
	return s.defaultConfig
}
