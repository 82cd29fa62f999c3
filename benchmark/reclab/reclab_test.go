package reclab_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/reclab"
	"github.com/gohedge/hedge/internal/netsim"
)

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	os.Exit(m.Run())
}

// TestResolversResolve runs all resolvers that are installed over kernel sockets. It does not depend on the speed of the
// machine: each resolver may fail to answer a few of a hundred names within ten seconds.
func TestResolversResolve(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0
		}
		return len(all)
	}
	before := files()
	skipped := 0
	rows, err := reclab.Run(t.Context(), lab.Config{Seed: 1, Calls: 100, Reporter: lab.Reporter{Skipped: func(why string) { skipped++; t.Log(why) }}})
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	assert.Less(t, files(), before+10, "a few may be the process's own, for good")
	assert.Len(t, rows, len(reclab.ContendersOf("broken"))-skipped)
	for i, r := range rows {
		t.Logf("%-13s p50 %v, sent %.2f, %d failed, CPU %v", r.Contender, r.Quantile(.5), r.SentPerCall(), r.Failures, r.CPU)
		if i < 2 {
			assert.Equal(t, reclab.Contenders[i], r.Contender, "ours are always there")
		}
		assert.LessOrEqual(t, r.Failures, 10, r.Contender)
		assert.Greater(t, r.SentPerCall(), 1.0, r.Contender)
		assert.Less(t, r.SentPerCall(), 20.0, r.Contender)
		assert.Equal(t, r.Contender == "hedge", r.Hedges > 0, r.Contender)
	}
}

// unbound and BIND agree with the lab on secure, insecure and bogus names.
func TestValidatorsAgreeWithTheLab(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, scenario := range []string{"signed-broken", "insecure"} {
		for _, name := range []string{"unbound-validate", "named-validate"} {
			rows, err := reclab.Run(t.Context(), lab.Config{Seed: 1, Scenario: scenario, Contenders: []string{name}, Calls: 200})
			if errors.Is(err, netsim.ErrUnsupported) || errors.Is(err, exec.ErrNotFound) {
				t.Skip(err)
			}
			require.NoError(t, err)
			r := rows[0]
			t.Logf("%s %s p50 %v, sent %.2f, %d failed, CPU %v", scenario, name, r.Quantile(.5), r.SentPerCall(), r.Failures, r.CPU)
			assert.Zero(t, r.WrongAD, name)
			assert.Zero(t, r.Bogus, name)
			assert.LessOrEqual(t, r.Failures, 20, "%s: a busy machine costs a few", name)
		}
	}
}

func TestWrongConfigsAreNamed(t *testing.T) {
	for want, conf := range map[string]lab.Config{
		`scenario "sunny"`: {Scenario: "sunny"},
		"Calls is -1":      {Calls: -1},
		"Rate -5":          {Rate: -5},
		`contender "bind"`: {Contenders: []string{"bind"}, Memory: true},
	} {
		_, err := reclab.Run(t.Context(), conf)
		assert.ErrorContains(t, err, want)
	}
	_, err := reclab.Run(t.Context(), lab.Config{Contenders: []string{"unbound-validate"}})
	assert.ErrorContains(t, err, "nothing is signed in broken")
	_, err = reclab.Run(t.Context(), lab.Config{Contenders: []string{"unbound"}, Memory: true})
	assert.ErrorIs(t, err, exec.ErrNotFound, "a program that is asked for has to run")
}
