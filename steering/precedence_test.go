package steering_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/steering"
)

// sources are the sources of settings, by precedence.
var sources = []string{"HEDGE_DISABLED", "HEDGE_MODE", "HEDGE_BUDGET_PERCENT", "file", "Update", "options"}

// TestFirstSourceApplies sets each pair of sources. The settings of a source are a value of its variable, the content of a file,
// a percentage, or a mode and a percentage.
func TestFirstSourceApplies(t *testing.T) {
	type source struct{ name, settings string }
	pairs := make(map[string]bool)
	for _, row := range []struct {
		first, second source
		want          string // mode and percentage
	}{
		{source{"HEDGE_DISABLED", "true"}, source{"HEDGE_MODE", "shadow"}, "off 10"},
		{source{"HEDGE_DISABLED", "false"}, source{"HEDGE_MODE", "shadow"}, "shadow 10"},
		{source{"HEDGE_DISABLED", "true"}, source{"HEDGE_BUDGET_PERCENT", "1"}, "off 1"},
		{source{"HEDGE_DISABLED", "true"}, source{"file", `{"mode": "on", "config": {"budget_percent": 2}}`}, "off 2"},
		{source{"HEDGE_DISABLED", "false"}, source{"file", `{"disabled": true}`}, "off 10"},
		{source{"HEDGE_DISABLED", "true"}, source{"Update", "3"}, "off 3"},
		{source{"HEDGE_DISABLED", "true"}, source{"options", "shadow 4"}, "off 4"},
		{source{"HEDGE_MODE", "on"}, source{"HEDGE_BUDGET_PERCENT", "1"}, "on 1"},
		{source{"HEDGE_MODE", "off"}, source{"HEDGE_BUDGET_PERCENT", "1"}, "off 1"},
		{source{"HEDGE_MODE", "audit"}, source{"file", `{"mode": "shadow", "config": {"budget_percent": 2}}`}, "audit 2"},
		{source{"HEDGE_MODE", "on"}, source{"file", `{"mode": "off"}`}, "on 10"},
		{source{"HEDGE_MODE", "on"}, source{"file", `{"disabled": true}`}, "off 10"},
		{source{"HEDGE_MODE", "off"}, source{"file", `{"mode": "on"}`}, "off 10"},
		{source{"HEDGE_MODE", "shadow"}, source{"Update", "3"}, "shadow 3"},
		{source{"HEDGE_MODE", "on"}, source{"options", "shadow 4"}, "on 4"},
		{source{"HEDGE_MODE", "audit"}, source{"options", "shadow 4"}, "audit 4"},
		{source{"HEDGE_MODE", "shadow"}, source{"options", "audit 4"}, "shadow 4"},
		{source{"HEDGE_BUDGET_PERCENT", "1"}, source{"file", `{"mode": "shadow", "config": {"budget_percent": 2}}`}, "shadow 1"},
		{source{"HEDGE_BUDGET_PERCENT", "1"}, source{"Update", "3"}, "on 1"},
		{source{"HEDGE_BUDGET_PERCENT", "1"}, source{"options", "shadow 4"}, "shadow 1"},
		{source{"file", `{"mode": "shadow", "config": {"budget_percent": 2}}`}, source{"Update", "3"}, "shadow 2"},
		{source{"file", `{"mode": "audit"}`}, source{"Update", "3"}, "audit 3"},
		{source{"file", `{"mode": "audit", "config": {"budget_percent": 2}}`}, source{"options", "shadow 4"}, "audit 2"},
		{source{"file", `{}`}, source{"options", "shadow 4"}, "shadow 4"},
		{source{"Update", "3"}, source{"options", "shadow 4"}, "shadow 3"},
	} {
		pairs[row.first.name+" "+row.second.name] = true
		for _, fileFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(row.first, row.second, fileFirst), func(t *testing.T) {
				unsetVariables(t)
				settings := make(map[string]string)
				for _, s := range []source{row.first, row.second} {
					settings[s.name] = s.settings
				}
				assert.Equal(t, row.want, stateAfter(t, settings, fileFirst))
			})
		}
	}
	for i, first := range sources {
		for _, second := range sources[i+1:] {
			assert.True(t, pairs[first+" "+second], "the table lacks %s and %s", first, second)
		}
	}
}

// stateAfter returns the mode and the percentage of a Hedger with the given settings by source. The file is applied before or
// after Update.
func stateAfter(t *testing.T, settings map[string]string, fileFirst bool) string {
	var options []hedge.FuncOption
	var programMode string
	var percent float64
	for name, s := range settings {
		if strings.HasPrefix(name, "HEDGE_") {
			t.Setenv(name, s)
		}
	}
	if s, ok := settings["options"]; ok {
		_, err := fmt.Sscan(s, &programMode, &percent)
		require.NoError(t, err)
		options = append(options, hedge.WithBudgetPercent(percent), map[string]hedge.Option{"shadow": hedge.WithShadow(), "audit": hedge.WithAudit()}[programMode])
	}
	h := hedge.NewHedger(options...)
	update := func() {
		if s, ok := settings["Update"]; ok {
			_, err := fmt.Sscan(s, &percent)
			require.NoError(t, err)
			require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent = percent }))
		}
	}
	if !fileFirst {
		update()
	}
	if s, ok := settings["file"]; ok {
		var f steering.File
		require.NoError(t, json.Unmarshal([]byte(s), &f))
		require.NoError(t, f.Apply(h))
	}
	if fileFirst {
		update()
	}
	_, err := hedge.Do(t.Context(), h, "shop", func(context.Context) (int, error) { return 0, nil })
	require.NoError(t, err)
	return fmt.Sprint(mode(h.Snapshot()), " ", h.Snapshot().Config.BudgetPercent)
}

func TestFileSettingsReturnToProgramWhenRemoved(t *testing.T) {
	unsetVariables(t)
	h := hedge.NewHedger(hedge.WithBudgetPercent(4), hedge.WithMaxHedges(1))
	apply := func(f steering.File) { require.NoError(t, f.Apply(h)) }
	apply(steering.File{Mode: "shadow", Config: map[string]any{"budget_percent": 2, "burst": 10 * ms}})
	assert.True(t, h.Snapshot().Shadow)
	require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent, c.MaxHedges = 3, 4 }), "only the second is changed")
	assert.EqualValues(t, 2, h.Snapshot().Config.BudgetPercent)
	assert.Equal(t, 4, h.Snapshot().Config.MaxHedges)
	apply(steering.File{})
	want := hedge.DefaultConfig()
	want.BudgetPercent, want.MaxHedges = 4, 4
	assert.Equal(t, want, h.Snapshot().Config)
	assert.False(t, h.Snapshot().Shadow)
}

func TestSetEnabledDoesNotEnableWhatFileDisables(t *testing.T) {
	unsetVariables(t)
	var j journal
	h := hedge.NewHedger(j.option())
	require.NoError(t, steering.File{Disabled: true}.Apply(h))
	h.SetEnabled(true)
	assert.False(t, h.Snapshot().Enabled)
	h.SetEnabled(false)
	require.NoError(t, steering.File{}.Apply(h))
	assert.False(t, h.Snapshot().Enabled, "the program has disabled it, too")
	h.SetEnabled(true)
	assert.True(t, h.Snapshot().Enabled)
	assert.Equal(t, []string{
		`WARN "hedge: disabled" by=file`,
		`INFO "hedge: a setting is not changed, because another source fixes it" setting=disabled by=SetEnabled fixed_by=file`,
		`INFO "hedge: enabled" by=SetEnabled`,
	}, j.take())
}

// TestLogNamesSourceThatFixesSetting has variables and a file that fix what another source sets.
func TestLogNamesSourceThatFixesSetting(t *testing.T) {
	const fixed = `INFO "hedge: a setting is not changed, because another source fixes it" `
	const file = `{"mode": "audit", "config": {"budget_percent": 2}}`
	for name, test := range map[string]struct {
		variables map[string]string
		option    hedge.FuncOption
		want      []string
	}{
		"no variable": {nil, nil, []string{
			`INFO "hedge: mode changed" from=on to=audit by=file`, `INFO "hedge: settings changed" budget_percent.from=10 budget_percent.to=2`,
			fixed + "setting=budget_percent by=Update fixed_by=file",
		}},
		"mode and budget": {map[string]string{"HEDGE_MODE": "on", "HEDGE_BUDGET_PERCENT": "1"}, nil, []string{
			`INFO "hedge: the budget is set" budget_percent=1 by=HEDGE_BUDGET_PERCENT`,
			fixed + "setting=budget_percent by=file fixed_by=HEDGE_BUDGET_PERCENT", fixed + "setting=mode by=file fixed_by=HEDGE_MODE",
			fixed + "setting=budget_percent by=Update fixed_by=HEDGE_BUDGET_PERCENT",
		}},
		"disabled": {map[string]string{"HEDGE_DISABLED": "1"}, nil, []string{
			`WARN "hedge: disabled" by=HEDGE_DISABLED`, `INFO "hedge: mode changed" from=on to=audit by=file`,
			`INFO "hedge: settings changed" budget_percent.from=10 budget_percent.to=2`, fixed + "setting=disabled by=file fixed_by=HEDGE_DISABLED",
			fixed + "setting=budget_percent by=Update fixed_by=file",
		}},
		"shared budget": {map[string]string{"HEDGE_BUDGET_PERCENT": "1"}, hedge.WithBudget(hedge.NewBudget(5, 10)), []string{
			`WARN "hedge: a variable of the environment has no effect here" variable=HEDGE_BUDGET_PERCENT value=1`,
			`INFO "hedge: mode changed" from=on to=audit by=file`,
			fixed + "setting=budget_percent by=file fixed_by=WithBudget", fixed + "setting=budget_percent by=Update fixed_by=WithBudget",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			unsetVariables(t)
			for variable, value := range test.variables {
				t.Setenv(variable, value)
			}
			var j journal
			h := hedge.NewHedger(j.option(), test.option)
			var f steering.File
			require.NoError(t, json.Unmarshal([]byte(file), &f))
			require.NoError(t, f.Apply(h))
			require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent = 3 }))
			assert.Equal(t, test.want, j.take())
		})
	}
}

// A Budget has a size of its own, so that the settings of token buckets have no effect.
func TestSharedBudgetFixesSettingsOfBuckets(t *testing.T) {
	unsetVariables(t)
	const fixed = `INFO "hedge: a setting is not changed, because another source fixes it" `
	var j journal
	h := hedge.NewHedger(j.option(), hedge.WithBudget(hedge.NewBudget(2, 5)))
	want := hedge.DefaultConfig()
	want.BudgetPercent = 2
	assert.Equal(t, want, h.Snapshot().Config)
	by := func(source string) []string {
		return []string{
			fixed + "setting=budget_percent by=" + source + " fixed_by=WithBudget", fixed + "setting=burst by=" + source + " fixed_by=WithBudget",
			fixed + "setting=estimated_rps by=" + source + " fixed_by=WithBudget",
		}
	}
	require.NoError(t, steering.File{Config: map[string]any{"budget_percent": 3, "estimated_rps": 7, "burst": "9s"}}.Apply(h))
	assert.Equal(t, by("file"), j.take())
	require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent, c.EstimatedRPS, c.Burst = 4, 8, ms }))
	assert.Equal(t, by("Update"), j.take())
	assert.Equal(t, want, h.Snapshot().Config)
}

func TestLogWarnsOfSmallBudgetOfFileAndUpdate(t *testing.T) {
	unsetVariables(t)
	const small = `INFO "hedge: the budget is less than 1 % of the calls" budget=`
	var j journal
	h := hedge.NewHedger(j.option())
	apply := func(percent float64) []string {
		require.NoError(t, steering.File{Config: map[string]any{"budget_percent": percent}}.Apply(h))
		return j.take()
	}
	assert.Contains(t, apply(0.1), small+`"0.1 %"`)
	assert.Len(t, apply(0.2), 1, "the change alone")
	assert.Len(t, apply(0), 1)
	assert.Contains(t, apply(0.5), small+`"0.5 %"`)
	require.NoError(t, steering.File{}.Apply(h))
	j.take()
	require.NoError(t, h.Update(func(c *hedge.Config) { c.BudgetPercent = 0.3 }))
	assert.Contains(t, j.take(), small+`"0.3 %"`)
}

func TestUpdateMustBeValidWithoutFile(t *testing.T) {
	unsetVariables(t)
	h := hedge.NewHedger(hedge.WithMaxDelay(50 * ms))
	require.NoError(t, steering.File{Config: map[string]any{"max_delay": "500ms"}}.Apply(h))
	before := h.Snapshot().Config
	assert.EqualError(t, h.Update(func(c *hedge.Config) { c.MinDelay = 100 * ms }),
		"hedge: Config.MaxDelay: 50ms is not at least MinDelay, 100ms, without the file of package steering")
	assert.Equal(t, before, h.Snapshot().Config)
	assert.NoError(t, steering.File{Disabled: true}.Apply(h))
	assert.NoError(t, steering.File{}.Apply(h))
	assert.Equal(t, 50*ms, h.Snapshot().Config.MaxDelay)
}

// TestInvalidOverrideStillDisables has settings that are invalid with those of the program.
func TestInvalidOverrideStillDisables(t *testing.T) {
	unsetVariables(t)
	h := hedge.NewHedger(hedge.WithMaxDelay(50 * ms))
	invalid := map[string]json.RawMessage{"min_delay": json.RawMessage(`"100ms"`)}
	target := ops.FindOverridable(h)
	_, err := target.ApplyOverride(&ops.Override{Config: invalid})
	assert.Error(t, err)
	assert.True(t, h.Snapshot().Enabled)
	_, err = target.ApplyOverride(&ops.Override{Disabled: true, Config: invalid})
	assert.Error(t, err)
	assert.False(t, h.Snapshot().Enabled)
	require.NoError(t, h.Update(func(c *hedge.Config) { c.MaxHedges = 1 }))
	assert.False(t, h.Snapshot().Enabled, "Update enables nothing")
	require.NoError(t, steering.File{}.Apply(h))
	assert.True(t, h.Snapshot().Enabled)
}

// TestSetEnabledDoesNotEnableModeOffOfFile has HEDGE_MODE=off, which SetEnabled(true) ends, and a file with the same mode.
func TestSetEnabledDoesNotEnableModeOffOfFile(t *testing.T) {
	unsetVariables(t)
	t.Setenv("HEDGE_MODE", "off")
	h := hedge.NewHedger()
	require.NoError(t, steering.File{Mode: "off"}.Apply(h))
	h.SetEnabled(true)
	assert.False(t, h.Snapshot().Enabled)
	require.NoError(t, steering.File{Mode: "shadow"}.Apply(h))
	assert.True(t, h.Snapshot().Enabled)
	assert.True(t, h.Snapshot().Shadow, "HEDGE_MODE=off sets no other mode")
}
