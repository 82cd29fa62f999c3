package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReportHasLightAndDarkColoursForEachClass(t *testing.T) {
	dir := t.TempDir()
	_, stderr, code := runSimulate(t, "-engine", "virtual", "-requests", "5000", "-out", dir)
	require.Equal(t, exitOK, code, stderr)
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	light, rest, found := strings.Cut(string(page), "@media(prefers-color-scheme:dark)")
	require.True(t, found)
	dark, drawn, found := strings.Cut(rest, "</style>")
	require.True(t, found)
	used := regexp.MustCompile(`class="[^"]*\b(s[0-9]+|grid|card|title)"`).FindAllStringSubmatch(drawn, -1)
	require.Greater(t, len(used), 30)
	for _, m := range used {
		colour := regexp.MustCompile(`\.` + m[1] + `\{(fill|stroke):#[0-9a-f]{6}`)
		assert.True(t, colour.MatchString(light), m[1])
		assert.True(t, colour.MatchString(dark), m[1])
	}
	for _, chart := range strings.Split(drawn, "<svg")[1:] {
		chart, _, _ = strings.Cut(chart, "</svg>")
		assert.NotContains(t, chart, "#", "a chart has no colour of its own")
		assert.NotContains(t, chart, "<style>")
	}
}
