package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTimersOfFakeTimeAreNeverLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timers := new(timerMonitor)
		stop := timers.startMeasuring()
		time.Sleep(100*ms + ms/2)
		stop()
		assert.Len(t, timers.delays, 101)
		assert.Zero(t, timers.p99Delay())
	})
}

func TestOneTimerInAHundredIsLater(t *testing.T) {
	timers := new(timerMonitor)
	assert.Zero(t, timers.p99Delay(), "nothing was measured")
	for i := range 100 {
		timers.delays = append(timers.delays, time.Duration(100-i)*ms)
	}
	assert.Equal(t, 100*ms, timers.p99Delay())
}

func TestBusyMachineIsSaidPlainly(t *testing.T) {
	for _, tt := range []struct {
		args string
		late time.Duration
		says bool
	}{
		{"-engine http", maxTimerDelay, false},
		{"-engine http", maxTimerDelay + 1, true},
		{"-engine virtual", time.Minute, false},
	} {
		o, err := parseOptions(strings.Fields(tt.args), os.Stderr)
		require.NoError(t, err)
		found := engineResults{options: o, timerDelay: tt.late, scenarios: []scenarioResults{{scenario: findScenario("reference")}}}
		var out bytes.Buffer
		require.NoError(t, found.writeResults(&out, "text"))
		assert.Equal(t, tt.says, strings.Contains(out.String(), "TOO BUSY"), "%s at %v: %s", tt.args, tt.late, &out)
		assert.Equal(t, tt.says, strings.Contains(out.String(), "-engine virtual"))
	}
}

func TestEveryTableSaysWhatPlusMinusIs(t *testing.T) {
	for args, want := range map[string]string{
		"-engine http":            "± is half of a 95 % interval",
		"-engine virtual -runs 3": "Medians of 3 runs, ± half their range.",
	} {
		o, err := parseOptions(strings.Fields(args), os.Stderr)
		require.NoError(t, err)
		assert.Contains(t, engineResults{options: o}.tableNotes()[0], want)
	}
	out, _, code := runSimulate(t, withFewRequests()...)
	require.Equal(t, exitOK, code)
	assert.Equal(t, 1+3*2, strings.Count(out, "±")-strings.Count(findScenario("reference").description, "±"), "p99 and p99.9 of three strategies: %s", out)
}

// The rest of the 90 seconds is for starting, measuring the rate, searching the best static delays and drawing.
func TestPlansFitIntoTheTimeThereIs(t *testing.T) {
	estimate := func(args string) (sum time.Duration) {
		o, err := parseOptions(strings.Fields(args), os.Stderr)
		require.NoError(t, err)
		for _, run := range o.planRuns(nil) {
			simulation := run.scenario.adjustedSimulation(run.size)
			p := run.newRequestSchedule(simulation)
			takes := expectedTimePerRequest(simulation) * time.Duration(len(run.neededStrategies())*p.requests)
			if p.limit > 0 {
				takes = min(takes, p.limit)
			}
			sum += takes
		}
		return sum
	}
	for args, most := range map[string]time.Duration{
		"-engine http":               75 * sec,
		"-engine grpc":               75 * sec,
		"-engine http -scenario all": 75 * sec,
		"-quick":                     14 * sec,
		"-quick -scenario all":       14 * sec,
		"-runs 5":                    75 * sec,
	} {
		assert.LessOrEqual(t, estimate(args), most, args)
		assert.Greater(t, estimate(args), most/2, args)
	}
	assert.InEpsilon(t, 2*30_000*7950*time.Microsecond/20, estimate("-requests 30000 -strategy none,hedge"), 0.05, "as long as it takes")
}
