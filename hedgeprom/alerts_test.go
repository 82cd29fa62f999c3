package hedgeprom_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge/internal/metricstest"
)

// alertTests are the files with tests of alerts.yaml.
var alertTests = []string{"alerts_test.yaml", "alerts_days_test.yaml"}

// An alertTestFile is a file that promtool tests rules with.
type alertTestFile struct {
	RuleFiles          []string    `yaml:"rule_files"`
	EvaluationInterval string      `yaml:"evaluation_interval"`
	Tests              []alertTest `yaml:"tests"`
}

// An alertTest holds series and the alerts that they fire.
type alertTest struct {
	Name     string
	Interval string
	Series   []struct{ Series, Values string } `yaml:"input_series"`
	Alerts   []struct {
		EvalTime string `yaml:"eval_time"`
		Name     string `yaml:"alertname"`
		Firing   []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
}

// fires reports whether an alert fires at any time of the test.
func (a *alertTest) fires() bool {
	for _, alert := range a.Alerts {
		if len(alert.Firing) > 0 {
			return true
		}
	}
	return false
}

func TestAlertsFireWithTheirLabelsAndAnnotations(t *testing.T) {
	metricstest.Promtool(t, "check", "rules", "alerts.yaml")
	metricstest.Promtool(t, append([]string{"test", "rules"}, alertTests...)...)
}

func TestEveryAlertIsTestedFiringAndSilent(t *testing.T) {
	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	decode(t, "alerts.yaml", &rules)
	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, name := range alertTests {
		var file alertTestFile
		decode(t, name, &file)
		for _, test := range file.Tests {
			for _, alert := range test.Alerts {
				assert.True(t, strings.HasPrefix(test.Name, alert.Name+": "), "%s tests %s", test.Name, alert.Name)
				for _, f := range alert.Firing {
					assert.Equal(t, "web", f.Labels["job"], test.Name)
					assert.NotEmpty(t, f.Labels["severity"], test.Name)
					assert.NotEmpty(t, f.Annotations["summary"], test.Name)
					assert.NotEmpty(t, f.Annotations["description"], test.Name)
				}
			}
			if test.fires() {
				fires[test.Alerts[0].Name] = true
			} else {
				silent[test.Alerts[0].Name] = true
			}
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			assert.True(t, fires[r.Alert], "no test of %s in which it fires", r.Alert)
			assert.True(t, silent[r.Alert], "no test of %s in which it stays silent", r.Alert)
		}
	}
}

func TestEveryAlertGroupsByService(t *testing.T) {
	b, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	groupings := regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`).FindAllSubmatch(b, -1)
	assert.NotEmpty(t, groupings)
	for _, g := range groupings {
		assert.Regexp(t, "^cluster, namespace, job, ", string(g[1]))
	}
	assert.Equal(t, len(regexp.MustCompile(`\b(?:sum|min|max|count|avg)\b`).FindAll(b, -1)), len(regexp.MustCompile(`\b(?:sum|min|max|count|avg) by \(`).FindAll(b, -1)))
}

// TestDocumentedCommandChangesLabelsOfService runs the sed command in alerts.yaml, which docs/operations.md has too, and checks that
// no rule still has a label that it replaces.
func TestDocumentedCommandChangesLabelsOfService(t *testing.T) {
	if _, err := exec.LookPath("sed"); err != nil {
		t.Skip("there is no sed")
	}
	rules, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^#   sed '(.*)' alerts\.yaml$`).FindSubmatch(rules)
	require.NotNil(t, command)
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	assert.Contains(t, string(page), "`sed '"+string(command[1])+"' alerts.yaml`")

	changed, err := exec.CommandContext(t.Context(), "sed", string(command[1]), "alerts.yaml").Output()
	require.NoError(t, err)
	_, changedRules, found := strings.Cut(string(changed), "\ngroups:")
	require.True(t, found)
	assert.Contains(t, changedRules, "by (region, app, client, host)")
	for _, label := range []string{"cluster", "namespace", "$labels.job"} {
		assert.NotContains(t, changedRules, label)
	}
}

// Each test in which an alert fires is run again beside the series of three services for which the alert stays silent:
// with another job, another namespace and another cluster. The alert must fire for the same service as without the series
// beside, and name its job, namespace and cluster.
func TestNoServiceHidesAlertsOfAnotherService(t *testing.T) {
	rules, err := filepath.Abs("alerts.yaml")
	require.NoError(t, err)
	tested := make(map[string]bool)
	for _, name := range alertTests {
		var file, mixed alertTestFile
		decode(t, name, &file)
		mixed.RuleFiles, mixed.EvaluationInterval = []string{rules}, file.EvaluationInterval
		for _, firing := range file.Tests {
			if !firing.fires() {
				continue
			}
			for _, quiet := range file.Tests {
				if quiet.fires() || quiet.Alerts[0].Name != firing.Alerts[0].Name || quiet.Interval != firing.Interval {
					continue
				}
				both := firing
				both.Series = nil
				for _, s := range firing.Series {
					s.Series = strings.Replace(s.Series, `job="web"`, `job="web", namespace="shop", cluster="eu"`, 1)
					both.Series = append(both.Series, s)
				}
				for _, alert := range both.Alerts {
					for _, f := range alert.Firing {
						f.Labels["namespace"], f.Labels["cluster"] = "shop", "eu"
					}
				}
				for _, other := range []string{`job="quiet", namespace="shop", cluster="eu"`, `job="web", namespace="quiet", cluster="eu"`, `job="web", namespace="shop", cluster="quiet"`} {
					for _, s := range quiet.Series {
						s.Series = strings.Replace(s.Series, `job="web"`, other, 1)
						both.Series = append(both.Series, s)
					}
				}
				mixed.Tests = append(mixed.Tests, both)
				tested[firing.Alerts[0].Name] = true
			}
		}
		b, err := yaml.Marshal(mixed)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		metricstest.Promtool(t, "test", "rules", path)
	}
	assert.Len(t, tested, 16, "alerts that are tested beside another service: %v", slices.Sorted(maps.Keys(tested)))
}

// decode reads a YAML file into v.
func decode(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, v))
}
