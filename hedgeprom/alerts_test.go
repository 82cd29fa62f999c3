package hedgeprom_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// promtool runs the tool of Prometheus that checks rules. It skips the test where there is none.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed; it comes with Prometheus")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestAlertsFireWithTheirLabelsAndAnnotations(t *testing.T) {
	promtool(t, "check", "rules", "alerts.yaml")
	promtool(t, "test", "rules", "alerts_test.yaml")
}

func TestEveryAlertIsTestedFiringAndSilent(t *testing.T) {
	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	decode(t, "alerts.yaml", &rules)
	var tests struct {
		Tests []struct {
			Name   string
			Alerts []struct {
				Name   string `yaml:"alertname"`
				Firing []struct {
					Labels      map[string]string `yaml:"exp_labels"`
					Annotations map[string]string `yaml:"exp_annotations"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	decode(t, "alerts_test.yaml", &tests)

	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, test := range tests.Tests {
		anyFires := false
		for _, alert := range test.Alerts {
			assert.True(t, strings.HasPrefix(test.Name, alert.Name+": "), "%s tests %s", test.Name, alert.Name)
			for _, f := range alert.Firing {
				anyFires = true
				fires[alert.Name] = true
				assert.NotEmpty(t, f.Labels["severity"], test.Name)
				assert.NotEmpty(t, f.Annotations["summary"], test.Name)
				assert.NotEmpty(t, f.Annotations["description"], test.Name)
			}
		}
		if !anyFires {
			silent[test.Alerts[0].Name] = true
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			assert.True(t, fires[r.Alert], "no test of %s in which it fires", r.Alert)
			assert.True(t, silent[r.Alert], "no test of %s in which it stays silent", r.Alert)
		}
	}
}

// decode reads a YAML file into v.
func decode(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, v))
}
