package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge"
)

func TestConfigIsReadFromYAML(t *testing.T) {
	c := hedge.DefaultConfig()
	require.NoError(t, yaml.Unmarshal([]byte("budget_percent: 2\nburst: 10s\nlinger: 0s\n"), &c))
	want := hedge.DefaultConfig()
	want.BudgetPercent, want.Burst, want.Linger = 2, 10*time.Second, 0
	assert.Equal(t, want, c)
	for text, says := range map[string]string{
		"burst: 10":                     "line 1: cannot unmarshal !!int `10` into time.Duration",
		"max_keys: 7\nburst: ten":       "line 2: cannot unmarshal !!str `ten` into time.Duration",
		"max_keys: 7\nbudget_percnt: 1": "line 2: field budget_percnt not found",
	} {
		d := yaml.NewDecoder(strings.NewReader(text))
		d.KnownFields(true)
		assert.ErrorContains(t, d.Decode(new(hedge.Config)), says)
	}
}
