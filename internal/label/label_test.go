package label_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/label"
)

func TestCleanKeepsWhatCanBeShown(t *testing.T) {
	for _, s := range []string{"", "catalog.test:8443", "/pkg.Service/Method", `a "quoted" \ name`, "bücher.example", strings.Repeat("a", label.Max)} {
		assert.Equal(t, s, label.Clean(s))
	}
}

func TestCleanReplacesWhatCannotBeShown(t *testing.T) {
	for in, want := range map[string]string{
		"\xff.example":            "\uFFFD.example",
		"a\xff\xfe\xfdb":          "a\uFFFDb",
		"a\x00b\nc\x1b[31m\u0085": "a\uFFFDb\uFFFDc\uFFFD[31m\uFFFD",
	} {
		assert.Equal(t, want, label.Clean(in))
	}
}

func TestCleanCutsLongStringsBetweenCharacters(t *testing.T) {
	assert.Equal(t, strings.Repeat("a", label.Max-3)+"…", label.Clean(strings.Repeat("a", 1<<20)))
	assert.Equal(t, strings.Repeat("ü", (label.Max-3)/2)+"…", label.Clean(strings.Repeat("ü", 200)))
}

func FuzzClean(f *testing.F) {
	f.Add("catalog.test")
	f.Add("\xff.example")
	f.Add(strings.Repeat("\x00", 100))
	f.Add(strings.Repeat("日本", 50))
	f.Fuzz(func(t *testing.T, s string) {
		got := label.Clean(s)
		assert.True(t, utf8.ValidString(got))
		assert.LessOrEqual(t, len(got), label.Max)
		assert.Negative(t, strings.IndexFunc(got, unicode.IsControl))
		assert.Equal(t, got, label.Clean(got), "cleaning twice is cleaning once")
	})
}
