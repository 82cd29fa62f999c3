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
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

var world = flag.String("world", "refuses", "that is measured over kernel sockets")

func TestMain(m *testing.M) {
	faultlab.Resolve()
	doubles.PreloadNetConfig()
	os.Exit(m.Run())
}

// Package dnshedge asserts what its Client has to do in each world, in fake time.
func TestItRunsOverKernelSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	rows, err := faultlab.Run(t.Context(), faultlab.Config{World: *world, Rate: 20, Seed: 1, Skipped: func(why string) { t.Log(why) }})
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, r := range rows {
		t.Logf("%-16s %d of %d, %d denied, the last after %v, %d queries", r.Contender, r.Answered(), len(r.Calls), r.Denied, r.Last, r.Queries)
		assert.Len(t, r.Calls, r.Asked)
		assert.Positive(t, r.Answered(), r.Contender)
	}
	assert.Equal(t, faultlab.Go, rows[0].Contender)
}

// What a world is, is known by what Go's resolver makes of it: whoever gets two servers in an order, and tries each once or
// twice, five seconds each.
func TestWorldsHaveTheirFaults(t *testing.T) {
	for world, want := range map[string]struct{ answered, denied, queries int }{
		"refuses":     {100, 0, 200},
		"validator":   {100, 0, 200},
		"drops-https": {100, 0, 150},
		"denies":      {100, 50, 100},
		"probes":      {75, 0, 125},
	} {
		synctest.Test(t, func(t *testing.T) {
			rows, err := faultlab.Run(t.Context(), faultlab.Config{World: world, Contenders: []string{faultlab.Go}, Rate: 20, Memory: true})
			require.NoError(t, err)
			require.Len(t, rows, 1)
			r := rows[0]
			assert.Equal(t, want.answered, r.Answered(), world)
			assert.Equal(t, want.denied, r.Denied, world)
			assert.EqualValues(t, want.queries, r.Queries, world)
			assert.Equal(t, 100, r.Asked)
		})
	}
}

func TestUnknownNamesAreErrors(t *testing.T) {
	_, err := faultlab.Run(context.Background(), faultlab.Config{World: "sunny", Memory: true})
	require.ErrorContains(t, err, `"sunny"`)
	_, err = faultlab.Run(context.Background(), faultlab.Config{World: "tenth", Contenders: []string{"luck"}, Memory: true})
	require.ErrorContains(t, err, `"luck"`)
}
