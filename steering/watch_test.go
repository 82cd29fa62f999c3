package steering_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/steering"
)

// watch runs Watch in the background, with an interval of a second, until the test ends.
func watch(t *testing.T, path string, clients ...steering.Client) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- steering.Watch(ctx, path, time.Second, clients...) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
}

func TestWatchKeepsLastValidContent(t *testing.T) {
	unsetVariables(t)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "hedge.json")
		var j journal
		h := hedge.NewHedger(j.option())
		watch(t, path, h)
		pass := func() []string {
			time.Sleep(3 * time.Second)
			return strings.Split(strings.ReplaceAll(strings.Join(j.take(), "\n"), path, "FILE"), "\n")
		}
		assert.Equal(t, []string{
			`WARN "hedge: a file with settings cannot be used, so no hedge is sent" file=FILE error="open FILE: no such file or directory"`,
			`WARN "hedge: disabled" by=file`,
		}, pass())
		assert.Equal(t, []string{""}, pass(), "one warning")

		replaceFile(t, path, `{"mode": "shadow", "config": {"budget_percent": 2}}`)
		inForce := `INFO "hedge: settings of a file are in force" file=FILE`
		assert.Equal(t, []string{
			`INFO "hedge: mode changed" from=on to=shadow by=file`, `INFO "hedge: settings changed" budget_percent.from=10 budget_percent.to=2`,
			`INFO "hedge: enabled" by=file`, inForce,
		}, pass())

		for range 2 {
			replaceFile(t, path, "{\n\"mode\": \"shadwo\"}")
			assert.Equal(t, []string{
				`WARN "hedge: a file with settings cannot be used, so its last valid content stays in force" file=FILE error="line 2: mode: \"shadwo\" is not on, shadow, audit or off"`,
			}, pass())
			require.NoError(t, os.Remove(path))
			assert.Equal(t, []string{""}, pass(), "one warning")
			assert.True(t, h.Snapshot().Shadow)
			replaceFile(t, path, `{"mode": "shadow", "config": {"budget_percent": 2}}`)
			assert.Equal(t, []string{""}, pass(), "nothing has changed")
		}

		replaceFile(t, path, `{"routes": {"/admin/": false}, "methods": {"/*": false}}`)
		assert.Equal(t, []string{
			`INFO "hedge: mode changed" from=shadow to=on by=file`, `INFO "hedge: routes changed" routes=map[/admin/:false] by=file`,
			`INFO "hedge: methods changed" methods=map[/*:false] by=file`, `INFO "hedge: settings changed" budget_percent.from=2 budget_percent.to=10`, inForce,
		}, pass())
	})
}

// TestWatchFollowsConfigMap changes a file as Kubernetes does: the file is a link into ..data, which is replaced by another link.
func TestWatchFollowsConfigMap(t *testing.T) {
	unsetVariables(t)
	dir := t.TempDir()
	publish := func(version, content string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, "hedge.json"), []byte(content), 0o600))
		require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("..1", `{"mode": "shadow"}`)
	path := filepath.Join(dir, "hedge.json")
	require.NoError(t, os.Symlink(filepath.Join("..data", "hedge.json"), path))
	synctest.Test(t, func(t *testing.T) {
		h := hedge.NewHedger()
		watch(t, path, h)
		time.Sleep(2 * time.Second)
		assert.True(t, h.Snapshot().Shadow)
		publish("..2", `{"config": {"max_hedges": 1}}`)
		time.Sleep(2 * time.Second)
		assert.False(t, h.Snapshot().Shadow)
		assert.Equal(t, 1, h.Snapshot().Config.MaxHedges)
	})
}

func TestWatchRejectsInvalidArguments(t *testing.T) {
	h := hedge.NewHedger()
	assert.EqualError(t, steering.Watch(t.Context(), "hedge.json", 0, h), "steering: Watch: the interval 0s is not positive")
	assert.EqualError(t, steering.Watch(t.Context(), "hedge.json", time.Second), "steering: there are no clients")
	stopped := errors.New("the program ends")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	assert.Equal(t, stopped, steering.Watch(ctx, filepath.Join(t.TempDir(), "hedge.json"), time.Second, h))
}

// TestWatchChangesNothingAfterContextHasEnded ends the context before Watch, and during the pause between its two reads.
func TestWatchChangesNothingAfterContextHasEnded(t *testing.T) {
	unsetVariables(t)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "hedge.json")
		h := hedge.NewHedger()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, steering.Watch(ended, path, time.Second, h), context.Canceled)
		assert.True(t, h.Snapshot().Enabled, "the file is missing")

		replaceFile(t, path, `{"mode": "shadow"}`)
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		assert.ErrorIs(t, steering.Watch(ctx, path, time.Second, h), context.DeadlineExceeded)
		assert.Equal(t, "on", mode(h.Snapshot()), "the pause was too short")

		ctx, cancel = context.WithTimeout(t.Context(), time.Second) // ends when the second poll is due
		defer cancel()
		go func() {
			time.Sleep(500 * ms)
			_ = os.Remove(path)
			replaceFile(t, path, `{"mode": "off"}`)
		}()
		assert.ErrorIs(t, steering.Watch(ctx, path, time.Second, h), context.DeadlineExceeded)
		assert.Equal(t, "shadow", mode(h.Snapshot()))
	})
}

// A version is the content of a file, as a number from which all its settings follow.
type version int

// content returns the file of the version. Its last byte is not a space, so that no part of it is complete.
func (v version) content() string {
	return fmt.Sprintf(`{"mode": %q,%s "config": {"budget_percent": %d, "max_hedges": %d, "burst": "%ds"}, "disabled": %v}`,
		v.mode(), strings.Repeat(" ", int(v)%5*100), v, v%5, v, v%2 == 0)
}

// mode returns the mode of the version.
func (v version) mode() string { return []string{"on", "shadow"}[v%2] }

// settings returns the settings of a client to which the version applies.
func (v version) settings() settings {
	return settings{budget: float64(v), hedges: int(v % 5), burst: time.Duration(v) * time.Second, shadow: v.mode() == "shadow", enabled: v%2 == 1}
}

// settings are the settings of a client that a version changes.
type settings struct {
	budget          float64
	hedges          int
	burst           time.Duration
	shadow, enabled bool
}

// settingsOf returns the current settings of a client.
func settingsOf(h *hedge.Hedger) settings {
	s := h.Snapshot()
	return settings{s.Config.BudgetPercent, s.Config.MaxHedges, s.Config.Burst, s.Shadow, s.Enabled}
}

// FuzzWatchAppliesFilesCompletely changes a file in each way that script names, also while it is read. After each poll the
// settings of the client must be those of one complete version, and of the newest one if the file has it.
func FuzzWatchAppliesFilesCompletely(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6})
	f.Add([]byte{8, 72, 136, 200, 3, 4, 12, 60, 124, 6, 14})
	f.Add([]byte{4, 4, 4, 5, 5, 2, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "hedge.json")
		unset := settings{budget: 10, hedges: 2, burst: 2 * time.Second, enabled: false} // as long as no file was applied
		known := map[settings]bool{unset: true}
		h := hedge.NewHedger(hedge.WithLogger(slog.New(slog.DiscardHandler)))
		var meanwhile func() // changes the file while it is read
		w := steering.NewWatcher(path, func(path string) ([]byte, error) {
			file, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer file.Close()
			var text []byte
			if change := meanwhile; change != nil {
				meanwhile = nil
				text, err = io.ReadAll(io.LimitReader(file, int64(20+10*len(script))))
				require.NoError(t, err)
				change()
			}
			rest, err := io.ReadAll(file)
			return append(text, rest...), err
		}, h)
		last := settingsOf(h)
		for i, step := range script[:min(len(script), 20)] {
			v := version(i + 1)
			content, complete := v.content(), true
			switch step % 8 {
			case 0: // replaced
				replaceFile(t, path, content)
			case 1: // written in place
				_ = os.WriteFile(path, []byte(content), 0o600)
			case 2: // truncated
				complete = false
				_ = os.WriteFile(path, []byte(content[:int(step)*len(content)/256]), 0o600)
			case 3: // a link to another file
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(content), 0o600))
				require.NoError(t, os.Symlink(fmt.Sprint(i), filepath.Join(dir, "link")))
				require.NoError(t, os.Rename(filepath.Join(dir, "link"), path))
			case 4: // written in place while it is read
				meanwhile = func() { _ = os.WriteFile(path, []byte(content), 0o600) }
			case 5: // replaced while it is read
				meanwhile = func() { replaceFile(t, path, content) }
			case 6: // truncated while it is read
				complete = false
				meanwhile = func() { _ = os.Truncate(path, int64(step)) }
			case 7: // removed
				complete = false
				_ = os.Remove(path)
			}
			if complete {
				known[v.settings()] = true
			}
			w.Poll()
			now := settingsOf(h)
			if i == 0 && last != now {
				last = now
			}
			require.True(t, known[now] || now == last, "%+v after step %d", now, i)
			if step%8 < 4 && complete {
				require.Equal(t, v.settings(), now, "step %d", i)
			}
			if !complete && step%8 != 6 {
				require.Equal(t, last, now, "step %d", i)
			}
			last, meanwhile = now, nil
		}
		v := version(99)
		replaceFile(t, path, v.content())
		w.Poll()
		require.Equal(t, v.settings(), settingsOf(h))
	})
}

// Clients without a logger share one warning for each time that the file becomes invalid.
func TestPollWarnsEachTimeWithoutLogger(t *testing.T) {
	unsetVariables(t)
	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	var warned bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&warned, nil)))
	path := filepath.Join(t.TempDir(), "hedge.json")
	w := steering.NewWatcher(path, os.ReadFile, hedge.NewHedger(), hedge.NewHedger())
	for _, invalid := range []string{`{"mode": "shadwo"}`, `{"mode": "of"}`, `{"mode": "of"}`} {
		replaceFile(t, path, `{"mode": "shadow"}`)
		w.Poll()
		warned.Reset()
		replaceFile(t, path, invalid)
		w.Poll()
		w.Poll()
		assert.Equal(t, 1, strings.Count(warned.String(), "a file with settings cannot be used"), warned.String())
	}
}

// TestPollRestoresClientsIfUpdateInterrupts updates the second client so that checked content becomes invalid for it.
func TestPollRestoresClientsIfUpdateInterrupts(t *testing.T) {
	unsetVariables(t)
	path := filepath.Join(t.TempDir(), "hedge.json")
	first, second := hedge.NewHedger(), hedge.NewHedger()
	w := steering.NewWatcher(path, os.ReadFile, first, second)
	percents := func() []float64 {
		return []float64{first.Snapshot().Config.BudgetPercent, second.Snapshot().Config.BudgetPercent}
	}
	const before, after = `{"config": {"budget_percent": 2}}`, `{"config": {"budget_percent": 3, "max_delay": "50ms"}}`
	replaceFile(t, path, before)
	w.Poll()
	require.Equal(t, []float64{2, 2}, percents())

	w.InterruptApply(1, func() {
		require.NoError(t, second.Update(func(c *hedge.Config) { c.MinDelay = 100 * ms }))
	})
	replaceFile(t, path, after)
	w.Poll()
	assert.Equal(t, []float64{2, 2}, percents(), "all clients or none")
	w.Poll()
	assert.Equal(t, []float64{2, 2}, percents(), "it is still invalid")
	require.NoError(t, second.Update(func(c *hedge.Config) { c.MinDelay = 0 }))
	w.Poll()
	assert.Equal(t, []float64{3, 3}, percents())
}

// TestPollAppliesContentAgainIfItCouldNotBeRestored updates both clients so that neither the next nor the earlier content is
// valid for all of them.
func TestPollAppliesContentAgainIfItCouldNotBeRestored(t *testing.T) {
	unsetVariables(t)
	path := filepath.Join(t.TempDir(), "hedge.json")
	first, second := hedge.NewHedger(), hedge.NewHedger()
	w := steering.NewWatcher(path, os.ReadFile, first, second)
	const before, after = `{"config": {"budget_percent": 2, "max_delay": "50ms"}}`, `{"config": {"budget_percent": 3, "max_delay": "80ms"}}`
	replaceFile(t, path, before)
	w.Poll()
	w.InterruptApply(1, func() {
		require.NoError(t, first.Update(func(c *hedge.Config) { c.MinDelay = 60 * ms }), "it has the next content already")
		require.NoError(t, steering.File{}.Apply(second))
		require.NoError(t, second.Update(func(c *hedge.Config) { c.MinDelay = 100 * ms }))
	})
	replaceFile(t, path, after)
	w.Poll()
	require.EqualValues(t, 3, first.Snapshot().Config.BudgetPercent, "the earlier content is invalid for it")
	for _, h := range []*hedge.Hedger{first, second} {
		require.NoError(t, h.Update(func(c *hedge.Config) { c.MinDelay = 0 }))
	}
	replaceFile(t, path, before)
	w.Poll()
	assert.EqualValues(t, 2, first.Snapshot().Config.BudgetPercent)
	assert.EqualValues(t, 2, second.Snapshot().Config.BudgetPercent)
}

// TestWatchDisablesClientsWhoseSettingsCameFromFile changes a setting of the program that a file has made valid, and removes
// the file.
func TestWatchDisablesClientsWhoseSettingsCameFromFile(t *testing.T) {
	unsetVariables(t)
	h := hedge.NewHedger(hedge.WithMaxDelay(50 * ms))
	require.NoError(t, steering.File{Config: map[string]any{"max_delay": "500ms"}}.Apply(h))
	_ = h.Update(func(c *hedge.Config) { c.MinDelay = 100 * ms })
	w := steering.NewWatcher(filepath.Join(t.TempDir(), "hedge.json"), os.ReadFile, h)
	w.Poll()
	assert.False(t, h.Snapshot().Enabled)
}
