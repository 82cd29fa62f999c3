package main

import (
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

func TestMain(m *testing.M) {
	doubles.PreloadNetConfig()
	os.Exit(m.Run())
}

func TestLastSetupNeedsFewLookupsAndHandshakes(t *testing.T) {
	doubles.SkipSimulation(t)
	synctest.Test(t, func(t *testing.T) {
		row, err := runService(t.Context(), featureSets[len(featureSets)-1])
		require.NoError(t, err)
		assert.LessOrEqual(t, row.Lookups, 4.)
		assert.LessOrEqual(t, row.Full+row.Resumed, 4.)
		assert.Greater(t, row.P50, 14*ms, "the network and the work of the services take as long")
	})
}

func TestClientLosesNoTimeToPools(t *testing.T) {
	doubles.SkipSimulation(t)
	synctest.Test(t, func(t *testing.T) {
		row, err := runLookups(t.Context(), 0)
		require.NoError(t, err)
		assert.Zero(t, row.Failed)
		assert.Less(t, row.Max, 1000*ms, "threads wait for 5 s after a lost packet")
	})
}
