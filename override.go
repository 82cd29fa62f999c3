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
func (o *overridable) ApplyOverride(file *ops.Override) error {
	o.updating.Lock()
	before, old := o.layers, o.settings.Load()
	layers := before
	layers.file = *file
	err := o.replaceLayers(&layers)
	now, isOff, switched := o.settings.Load(), layers.isFileOff(), false
	if err == nil {
		switched = o.client.SetOff(calls.OffByFile, isOff)
	}
	o.updating.Unlock()
	if err != nil {
		return err
	}
	if switched && !isOff {
		o.client.Policy.ClearPushback()
	}
	o.logOverride(&before, &layers)
	o.logSettingsChange(old, now)
	if switched {
		o.client.Log.LogSwitch(!isOff, "file")
	}
	o.client.Log.LogFixedSettings("file", layers.fixedForFile(o.options.budget != nil, o.client.Enabled()))
	return nil
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
