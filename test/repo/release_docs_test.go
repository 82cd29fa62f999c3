package repo_test

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// changelogVersion is a heading of CHANGELOG.md.
var changelogVersion = regexp.MustCompile(`^## v(\d+)\.(\d+)\.(\d+) - (unreleased|\d{4}-\d\d-\d\d)$`)

// TestChangelogHasASectionForEachVersion keeps the headings as .ci/changes and .ci/release-check read them.
func TestChangelogHasASectionForEachVersion(t *testing.T) {
	sections := strings.Split("\n"+sources(t, "CHANGELOG.md"), "\n## ")[1:]
	require.NotEmpty(t, sections)
	before := "newer than all"
	for i, section := range sections {
		heading, text, _ := strings.Cut("## "+section, "\n")
		m := changelogVersion.FindStringSubmatch(heading)
		require.NotNil(t, m, "%q is not like ## v1.2.3 - 2026-12-31, nor like ## v1.2.3 - unreleased", heading)
		assert.True(t, i == 0 || m[4] != "unreleased", "%s: only the newest version can wait for its date", heading)
		assert.Contains(t, text, "\n- ", "%s says nothing", heading)
		version := fmt.Sprintf("%5s.%5s.%5s", m[1], m[2], m[3])
		assert.Less(t, version, before, "%s: the newest comes first", heading)
		before = version
	}
}

// TestREADMEFirstScreenSaysWhatAnAdopterAsks: which Go, which release, what support.
func TestREADMEFirstScreenSaysWhatAnAdopterAsks(t *testing.T) {
	screen, _, _ := strings.Cut(sources(t, "README.md"), "\n<img")
	needed := regexp.MustCompile(`^go (\d+\.\d+)`).FindStringSubmatch(goDirective(t))
	doubles.AssertContains(t, "README.md", screen, "Go "+needed[1]+" or newer")
	newest := changelogVersion.FindStringSubmatch(regexp.MustCompile(`(?m)^## .*$`).FindString(sources(t, "CHANGELOG.md")))
	require.NotNil(t, newest)
	state := "not released yet"
	if newest[4] != "unreleased" {
		state = "released " + newest[4]
	}
	doubles.AssertContains(t, "README.md", screen, strings.Join(newest[1:4], ".")+", "+state)
	for _, link := range []string{"(docs/design/versioning.md)", "(SECURITY.md)", "(CHANGELOG.md)"} {
		doubles.AssertContains(t, "README.md", screen, link)
	}
	doubles.AssertContains(t, "CONTRIBUTING.md", sources(t, "CONTRIBUTING.md"), "You need Go "+needed[1]+" or newer")
}

// TestReleasingNamesEveryModule compares docs/design/releasing.md and .ci/released with the modules of the repository.
func TestReleasingNamesEveryModule(t *testing.T) {
	doc := sources(t, "docs/design/releasing.md")
	released := regexp.MustCompile(`(?m)^echo (\S+)$`).FindAllStringSubmatch(sources(t, ".ci/released"), -1)
	order := []string{}
	for _, m := range released {
		order = append(order, m[1])
	}
	assert.Equal(t, append([]string{"."}, nested...), order)
	for _, command := range []string{"git tag ", "git push origin "} {
		var tags []string
		for _, m := range regexp.MustCompile(`(?m)^ +`+command+`(\S+)$`).FindAllStringSubmatch(doc, -1) {
			tags = append(tags, path.Dir(m[1]))
		}
		assert.Equal(t, order, tags, "%s: each module, in this order", command)
	}
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if dir := filepath.ToSlash(filepath.Dir(name)); err == nil && d.Name() == "go.mod" && !slices.Contains(order, dir) {
			doubles.AssertContains(t, "docs/design/releasing.md", doc, "`"+dir+"`")
		}
		return err
	}))
}

// TestVulnerabilitiesCanBeReportedByALink keeps SECURITY.md from sending people to search.
func TestVulnerabilitiesCanBeReportedByALink(t *testing.T) {
	doubles.AssertContains(t, "SECURITY.md", sources(t, "SECURITY.md"), "](https://"+module+"/security/advisories/new)")
}
