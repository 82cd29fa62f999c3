package hedge

import (
	"log/slog"
	"maps"
	"reflect"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/ops"
)

// Package steering changes the settings of clients at run time by this function, because they export no methods for it.
func init() { ops.FindOverridable = findOverridable }

// findOverridable implements [ops.FindOverridable].
func findOverridable(client any) ops.Overridable {
	c, ok := client.(interface{ overridable() *overridable })
	if v := reflect.ValueOf(client); !ok || v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	if o := c.overridable(); o.client.Policy != nil {
		return o
	}
	return nil
}

// An overridable implements [ops.Overridable] for a Transport, an Interceptor or a Hedger.
type overridable struct{ *controls }

// overridable returns h as an [ops.Overridable].
func (h *controls) overridable() *overridable { return &overridable{h} }

// Log implements [ops.Overridable].
func (o *overridable) Log() *ops.Log { return o.client.Log }

// CheckOverride implements [ops.Overridable].
func (o *overridable) CheckOverride(file *ops.Override) error {
	o.updating.Lock()
	defer o.updating.Unlock()
	layers := o.layers
	layers.file = *file
	_, err := layers.config()
	return err
}

// ApplyOverride implements [ops.Overridable].
func (o *overridable) ApplyOverride(file *ops.Override) (previous *ops.Override, err error) {
	o.updating.Lock()
	before, old := o.layers, o.settings.Load()
	switched, err := o.replaceFile(file)
	layers, now := o.layers, o.settings.Load()
	o.updating.Unlock()
	if err != nil && !file.Disabled {
		return nil, err
	}
	isOff := layers.isFileOff()
	if switched && !isOff {
		o.client.Policy.ClearPushback()
	}
	o.logOverride(&before, &layers)
	o.logSettingsChange(old, now)
	if switched {
		o.client.Log.LogSwitch(!isOff, "file")
	}
	o.client.Log.LogFixedSettings("file", layers.fixedForFile(o.options.budget != nil, o.client.Enabled()))
	return &before.file, err
}

// replaceFile replaces the settings of the file. It returns an error if they are invalid with the other settings. Then it changes
// nothing, except that it switches hedging off if the file is disabled. switched is true if the result of Enabled has changed.
// The caller must hold updating.
//
// Hedging is switched off before the other settings change, and on after that. So neither calls in flight nor calls that start
// during the change are hedged if neither file allows it.
func (o *overridable) replaceFile(file *ops.Override) (switched bool, err error) {
	layers := o.layers
	layers.file, layers.earlierMode = *file, o.layers.mode()
	settings, err := layers.config()
	switch {
	case err != nil && file.Disabled:
		o.layers.file.Disabled, o.layers.earlierMode = true, layers.earlierMode
		return o.client.SetOff(calls.OffByFile, true), err
	case err != nil:
		return false, err
	}
	isOff := layers.isFileOff()
	if isOff {
		switched = o.client.SetOff(calls.OffByFile, true)
	}
	o.replaceLayers(&layers, &settings)
	if !isOff {
		switched = o.client.SetOff(calls.OffByFile, false)
	}
	return switched, nil
}

// logOverride logs which mode, routes and methods differ between two sets of layers.
func (o *overridable) logOverride(before, now *settingLayers) {
	if from, to := before.mode(), now.mode(); from != to {
		o.client.Log.LogMode(from, to, "file")
	}
	if !maps.Equal(before.file.Routes, now.file.Routes) {
		o.client.Log.Log(slog.LevelInfo, "routes changed", slog.Any("routes", now.file.Routes), slog.String("by", "file"))
	}
	if !maps.Equal(before.file.Methods, now.file.Methods) {
		o.client.Log.Log(slog.LevelInfo, "methods changed", slog.Any("methods", now.file.Methods), slog.String("by", "file"))
	}
}
