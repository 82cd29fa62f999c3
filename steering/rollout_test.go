package steering_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// A stage is a row of the table of stages in docs/rollout.md.
type stage struct {
	name           string
	variable, file string // a variable, such as HEDGE_MODE=shadow, and the content of a file with the same effect
}

// rolloutStages reads the table of stages, and the two settings of a smaller share that follow it.
func rolloutStages(t *testing.T) (stages []stage, share stage) {
	b, err := os.ReadFile("../docs/rollout.md")
	require.NoError(t, err)
	_, doc, found := strings.Cut(string(b), "| stage | how |")
	require.True(t, found)
	variable, object := regexp.MustCompile("`(HEDGE_\\w+=\\w+)`"), regexp.MustCompile("`(\\{.*?\\})`")
	settings := func(name, text string) stage {
		s := stage{name: name}
		if m := variable.FindStringSubmatch(text); m != nil {
			s.variable = m[1]
		}
		m := object.FindStringSubmatch(text)
		require.NotNil(t, m, text)
		s.file = m[1]
		return s
	}
	table, rest, _ := strings.Cut(doc, "\n\n")
	for _, row := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(row, "|")
		stages = append(stages, settings(strings.TrimSpace(cells[1]), cells[2]))
	}
	require.Len(t, stages, 4)
	_, rest, found = strings.Cut(rest, "To begin with less load")
	require.True(t, found)
	return stages, settings("share", rest)
}

// play makes calls by h in one stage, and checks what the stage promises.
func (s *service) play(t *testing.T, name string, h *hedge.Hedger) {
	before, attempts := h.Snapshot(), s.attempts.Load()
	minutes := 3
	if name == "2 audit" {
		minutes = 15
	}
	hedges := s.callFor(t, h, time.Duration(minutes)*time.Minute)
	now := h.Snapshot()
	calls := now.Stats.TotalRequests - before.Stats.TotalRequests
	assert.Equal(t, calls+hedges, s.attempts.Load()-attempts, name)
	switch name {
	case "0 off":
		assert.Zero(t, hedges)
		assert.Empty(t, now.Keys, "nothing is learned")
	case "1 shadow":
		assert.Zero(t, hedges)
		predicted := now.Keys[0].Denied[hedge.DeniedShadow]
		assert.Greater(t, now.Keys[0].ShadowWins, predicted/10)
	case "2 audit":
		assert.Positive(t, hedges)
		assert.Equal(t, hedge.AuditOn, now.Keys[0].Audit.Verdict)
	case "3 full":
		assert.InDelta(t, float64(calls)/20, hedges, float64(calls)/40, "a twentieth of the calls is slow")
		assert.Nil(t, now.Keys[0].Audit)
	}
}

// TestRolloutByVariables restarts a process with the variable of each stage.
func TestRolloutByVariables(t *testing.T) {
	doubles.SkipSimulation(t)
	stages, share := rolloutStages(t)
	synctest.Test(t, func(t *testing.T) {
		var j journal
		s := newService()
		for _, stage := range stages {
			unsetVariables(t)
			if name, value, ok := strings.Cut(stage.variable, "="); ok {
				t.Setenv(name, value)
			}
			s.play(t, stage.name, hedge.NewHedger(j.option()))
			t.Logf("%s: %s\n%s", stage.name, stage.variable, strings.Join(j.take(), "\n"))
		}
		name, value, _ := strings.Cut(share.variable, "=")
		t.Setenv(name, value)
		h := hedge.NewHedger(j.option())
		calls := h.Snapshot().Stats.TotalRequests
		hedges := s.callFor(t, h, 10*time.Minute)
		calls = h.Snapshot().Stats.TotalRequests - calls
		assert.InDelta(t, 0.02*float64(calls), hedges, 0.005*float64(calls))
		t.Logf("%s\n%s", share.variable, strings.Join(j.take(), "\n"))
	})
}

// TestRolloutByFile changes the file of one process for each stage.
func TestRolloutByFile(t *testing.T) {
	doubles.SkipSimulation(t)
	stages, share := rolloutStages(t)
	unsetVariables(t)
	path := filepath.Join(t.TempDir(), "hedge.json")
	synctest.Test(t, func(t *testing.T) {
		var j journal
		s := newService()
		h := hedge.NewHedger(j.option())
		for i, stage := range stages {
			replaceFile(t, path, stage.file)
			if i == 0 {
				watch(t, path, h)
			}
			time.Sleep(2 * time.Second)
			s.play(t, stage.name, h)
			t.Logf("%s: %s\n%s", stage.name, stage.file, strings.Join(j.take(), "\n"))
		}
		replaceFile(t, path, share.file)
		time.Sleep(2 * time.Second)
		s.callFor(t, h, time.Minute) // spends what is left of the larger budget
		calls := h.Snapshot().Stats.TotalRequests
		hedges := s.callFor(t, h, 10*time.Minute)
		calls = h.Snapshot().Stats.TotalRequests - calls
		assert.InDelta(t, 0.02*float64(calls), hedges, 0.005*float64(calls))
		t.Logf("%s\n%s", share.file, strings.Join(j.take(), "\n"))
	})
}
