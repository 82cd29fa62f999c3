// Package steering changes the settings of hedged clients at run time, from a file or from feature flags. So a platform team can
// try, limit and stop hedging in many services without a release or a restart.
//
// A file is a JSON object. Each setting is optional:
//
//	{
//	  "mode": "audit",
//	  "config": {"budget_percent": 2, "max_hedges": 1},
//	  "routes": {"/admin/": false},
//	  "methods": {"/*": false, "/shop.Catalog/*": true}
//	}
//
// [Watch] applies a file and its later changes to clients. The file of one client may also serve others, because settings for
// another protocol have no effect.
//
// # Precedence
//
// If several sources set the same setting, the first of them applies: HEDGE_DISABLED, HEDGE_MODE, HEDGE_BUDGET_PERCENT, the
// file, [hedge.Transport.Update], options. A setting that is removed from the file gets the value of the next source again.
// [hedge.WithLogger] logs each change, and each setting of the file that an environment variable overrides with another value.
//
// A client that one source disables is not enabled by another: a file does not enable what HEDGE_DISABLED, HEDGE_MODE=off or
// SetEnabled(false) has disabled, and SetEnabled(true) does not enable what the file disables. As without a file,
// SetEnabled(true) enables what a variable has disabled.
package steering

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/pattern"
	"github.com/gohedge/hedge/internal/sanitize"
)

// A File holds the settings of a steering file, which change hedged clients while a program runs. They can switch the
// mode, disable hedging, replace values of [hedge.Config], and allow or forbid hedges by route or gRPC method. The zero
// File changes nothing.
//
// In JSON, its fields have the names mode, disabled, config, routes and methods, in lower case. An unknown name is an
// error, and so is a name that is given twice.
type File struct {
	// Mode is "on", "shadow", "audit" or "off", with the same effects as the values of HEDGE_MODE. With "", the mode of the
	// program applies. "off" disables hedging, as Disabled does, and keeps the verdicts of audits.
	Mode string `json:"mode,omitempty"`

	// Disabled disables hedging. Clients then learn nothing, as after SetEnabled(false). False does not enable a client that
	// another source disables.
	Disabled bool `json:"disabled,omitempty"`

	// Config holds settings of [hedge.Config] by their names in JSON, such as "budget_percent". The other settings keep the
	// values of the program. Values are as in JSON; a [time.Duration] is accepted too. An integer beyond 2^53 is read as an int64.
	Config map[string]any `json:"config,omitempty"`

	// Routes allows or forbids hedges of HTTP requests, by patterns of [net/http.ServeMux]. The most specific pattern that
	// matches a request applies. False forbids hedges of the request, also with [hedge.AllowHedging]. True, and no matching
	// pattern, leave the decision to the program. So Routes never allows more hedges than the program does.
	//
	// The pattern "/admin/" matches neither "/admin" nor "/admin%2Fx", although some servers treat these as paths below it. If
	// the path of a request is not clean, such as "//a", each matching pattern forbids its hedges.
	//
	// Routes has at most 256 patterns.
	Routes map[string]bool `json:"routes,omitempty"`

	// Methods allows or forbids hedges of gRPC calls, as Routes does for HTTP. A pattern is "/pkg.Service/Method",
	// "/pkg.Service/*" or "/*". Methods has at most 256 patterns.
	Methods map[string]bool `json:"methods,omitempty"`
}

// maxPatterns is the maximum number of patterns for requests, and of patterns for methods. Some requests cause the creation of a
// copy of all patterns but one, see package pattern.
const maxPatterns = 256

// A Client is a client whose settings [Watch] and [File.Apply] can change: a [*hedge.Transport], a [*hedge.Interceptor] or a
// [*hedge.Hedger]. Other implementations are not supported.
type Client interface {
	SetEnabled(on bool)
	Update(f func(*hedge.Config)) error
	Snapshot() hedge.Snapshot
}

// Apply puts the settings in f into force for calls of the clients that start afterwards. They replace those of an earlier File.
// If f is invalid for one of the clients, Apply changes none of them and returns an error, which names the setting and its value.
//
// Apply must not be called while [Watch] runs for the same clients, because each replaces the settings of the other.
func (f File) Apply(clients ...Client) error {
	targets, err := findTargets(clients)
	if err != nil {
		return err
	}
	return f.applyToClients(targets)
}

// findTargets returns the given clients as Overridables, whose settings can be replaced at run time. It returns an
// error if there are no clients, or if one of them was not made by a constructor of package hedge.
func findTargets(clients []Client) (targets []ops.Overridable, err error) {
	if len(clients) == 0 {
		return nil, errors.New("steering: there are no clients")
	}
	for _, c := range clients {
		target := ops.FindOverridable(c)
		if target == nil {
			return nil, fmt.Errorf("steering: %T is not a client that a constructor of package hedge has made", c)
		}
		targets = append(targets, target)
	}
	return targets, nil
}

// applyToClients puts the settings in f (mode, config values, routes and methods) into force for later calls of all
// given clients. They replace the settings of an earlier File. If a client rejects them, it returns an error and all
// clients keep their earlier settings.
func (f File) applyToClients(targets []ops.Overridable) error {
	o, _, err := f.convertToOverride()
	if err != nil {
		return fmt.Errorf("steering: %w", err)
	}
	for _, t := range targets {
		if err := t.CheckOverride(o); err != nil {
			return fmt.Errorf("steering: config: %w", err)
		}
	}
	previous := make([]*ops.Override, len(targets))
	for i, t := range targets {
		if previous[i], err = t.ApplyOverride(o); err != nil { // a concurrent Update has made the settings invalid
			err = fmt.Errorf("steering: config: %w", err)
			if failed := restoreOverrides(targets, previous); failed != nil {
				err = fmt.Errorf("%w; the earlier settings of a client cannot be restored: %w", err, failed)
			}
			return err
		}
	}
	return nil
}

// restoreOverrides puts earlier settings into force again, after a client has rejected new ones. previous has the
// earlier settings of each client in targets, or nil if that client was not changed. It works in reverse order, because
// targets may contain a client twice.
func restoreOverrides(targets []ops.Overridable, previous []*ops.Override) (err error) {
	for i, o := range slices.Backward(previous) {
		if o != nil {
			_, e := targets[i].ApplyOverride(o)
			err = errors.Join(err, e)
		}
	}
	return err
}

// convertToOverride validates f and converts it to an Override, the form of the settings that clients accept. If a
// value is invalid, it returns an error and the path of the value in the file, such as "config", "burst".
func (f File) convertToOverride() (o *ops.Override, path []string, err error) {
	mode, ok := ops.ParseMode(f.Mode)
	switch {
	case !ok:
		return nil, []string{"mode"}, fmt.Errorf("mode: %q is not on, shadow, audit or off", f.Mode)
	case len(f.Routes) > maxPatterns:
		return nil, []string{"routes"}, fmt.Errorf("routes: %d patterns are more than %d", len(f.Routes), maxPatterns)
	case len(f.Methods) > maxPatterns:
		return nil, []string{"methods"}, fmt.Errorf("methods: %d patterns are more than %d", len(f.Methods), maxPatterns)
	}
	o = &ops.Override{Mode: mode, Disabled: f.Disabled, Routes: maps.Clone(f.Routes), Methods: maps.Clone(f.Methods)}
	for _, name := range slices.Sorted(maps.Keys(f.Config)) {
		text, err := encodeSetting(name, f.Config[name])
		if err != nil {
			return nil, []string{"config", name}, fmt.Errorf("config: %w", err)
		}
		if o.Config == nil {
			o.Config = make(map[string]json.RawMessage)
		}
		o.Config[name] = text
	}
	var routes pattern.Mux[bool]
	for _, p := range slices.Sorted(maps.Keys(f.Routes)) {
		err := routes.Add(p, "routes", f.Routes[p])
		if strings.Contains(p+"/", "/*/") {
			err = errors.New(`a segment "*" is for gRPC methods`)
		}
		if err != nil {
			return nil, []string{"routes", p}, fmt.Errorf("routes: %q: %w", p, err)
		}
	}
	if len(f.Routes) > 0 {
		o.ExcludesRequest = func(method, host string, u *url.URL) bool {
			allowed, clean, matches := routes.Find(method, host, u)
			return matches && !(allowed && clean)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(f.Methods)) {
		if !pattern.IsMethodPattern(p) {
			return nil, []string{"methods", p}, fmt.Errorf("methods: %q is not /pkg.Service/Method, /pkg.Service/* or /*", p)
		}
	}
	if len(f.Methods) > 0 {
		o.ExcludesMethod = func(method string) bool { return isMethodExcluded(o.Methods, method) }
	}
	return o, nil, nil
}

// isMethodExcluded reports whether patterns forbids hedges of a gRPC method, such as "/shop.Catalog/Get". The most
// specific pattern that matches the method decides: the value false forbids hedges. If no pattern matches, the result
// is false.
func isMethodExcluded(patterns map[string]bool, method string) bool {
	service := method[:strings.LastIndexByte(method, '/')+1]
	for _, p := range [...]string{method, service + "*", "/*"} {
		if allowed, ok := patterns[p]; ok {
			return !allowed
		}
	}
	return false
}

// encodeSetting returns the JSON encoding of value, the value of the setting of [hedge.Config] with the given name. It
// returns an error if the name is unknown or the value is invalid by itself. A conflict with another setting is found
// later, when the settings are applied.
func encodeSetting(name string, value any) (json.RawMessage, error) {
	switch d := value.(type) {
	case nil:
		return nil, fmt.Errorf("%s: null is no value", name)
	case time.Duration:
		value = d.String()
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	one, err := json.Marshal(map[string]json.RawMessage{name: text})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c := hedge.DefaultConfig()
	if name == "max_delay" || name == "initial_delay" {
		c.MinDelay = 0 // the program may have set it
	}
	if err := json.Unmarshal(one, &c); err != nil {
		return nil, err
	}
	if !slices.Contains(settingNames, name) { // a Config ignores the difference between upper and lower case
		return nil, fmt.Errorf("%q is no setting, because names are in lower case", sanitize.CleanText(name))
	}
	return text, c.Validate()
}

// settingNames are the names of the settings of [hedge.Config] in JSON.
var settingNames = func() (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[hedge.Config]()) {
		names = append(names, field.Tag.Get("json"))
	}
	return names
}()
