package faultlab_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/faultlab"
	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

var scenario = flag.String("scenario", "refuses", "the scenario over kernel sockets")

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	doubles.PreloadNetConfig()
	os.Exit(m.Run())
}

// The figures of each scenario are tested in fake time, here and in package dnshedge.
func TestRunWorksOverKernelSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	rows, err := faultlab.Run(t.Context(), lab.Config{Scenario: *scenario, Rate: 20, Seed: 1, Reporter: lab.Reporter{Skipped: func(why string) { t.Log(why) }}})
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, r := range rows {
		t.Logf("%-16s %d of %d, %d denied, the last after %v, %d queries", r.Contender, r.Answered(), len(r.Calls), r.Denials, r.LastAnswer, r.Sent)
		assert.Len(t, r.Calls, r.Asked)
		assert.Positive(t, r.Answered(), r.Contender)
	}
	assert.Equal(t, faultlab.GoResolver, rows[0].Contender)
}

// Go's resolver shows the fault of a scenario: it queries two servers in a fixed order, once or twice each, for five
// seconds each.
func TestScenariosHaveTheirFaults(t *testing.T) {
	for scenario, want := range map[string]struct{ answered, denied, queries int }{
		"refuses":     {100, 0, 200},
		"validator":   {100, 0, 200},
		"drops-https": {100, 0, 150},
		"denies":      {100, 50, 100},
		"probes":      {75, 0, 125},
	} {
		synctest.Test(t, func(t *testing.T) {
			rows, err := faultlab.Run(t.Context(), lab.Config{Scenario: scenario, Contenders: []string{faultlab.GoResolver}, Rate: 20, Memory: true})
			require.NoError(t, err)
			require.Len(t, rows, 1)
			r := rows[0]
			assert.Equal(t, want.answered, r.Answered(), scenario)
			assert.Equal(t, want.denied, r.Denials, scenario)
			assert.EqualValues(t, want.queries, r.Sent, scenario)
			assert.Equal(t, 100, r.Asked)
		})
	}
}

func TestUnknownNamesAreErrors(t *testing.T) {
	_, err := faultlab.Run(context.Background(), lab.Config{Scenario: "sunny", Memory: true})
	require.ErrorContains(t, err, `"sunny"`)
	_, err = faultlab.Run(context.Background(), lab.Config{Scenario: "tenth", Contenders: []string{"luck"}, Memory: true})
	require.ErrorContains(t, err, `"luck"`)
}
