package sanitize_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/sanitize"
)

func TestCleanTextKeepsPrintableText(t *testing.T) {
	for _, s := range []string{"", "catalog.test:8443", "/pkg.Service/Method", `a "quoted" \ name`, "bücher.example", strings.Repeat("a", sanitize.MaxBytes)} {
		assert.Equal(t, s, sanitize.CleanText(s))
	}
}

func TestCleanTextReplacesControlCharactersAndInvalidBytes(t *testing.T) {
	for in, want := range map[string]string{
		"\xff.example":            "\uFFFD.example",
		"a\xff\xfe\xfdb":          "a\uFFFDb",
		"a\x00b\nc\x1b[31m\u0085": "a\uFFFDb\uFFFDc\uFFFD[31m\uFFFD",
	} {
		assert.Equal(t, want, sanitize.CleanText(in))
	}
}

func TestCleanTextCutsLongTextBetweenCharacters(t *testing.T) {
	for char, kept := range map[string]int{"a": 200, "ü": 100, "日": 66} {
		got := sanitize.CleanText(strings.Repeat(char, 1<<10))
		assert.Equal(t, strings.Repeat(char, kept)+"…", got[:len(got)-32])
		assert.NotEqual(t, got, sanitize.CleanText(strings.Repeat(char, 1<<10+1)), "different texts stay different")
	}
}

func TestShortenTextKeepsNamesDistinct(t *testing.T) {
	assert.Equal(t, strings.Repeat("\xff", sanitize.MaxBytes), sanitize.ShortenText(strings.Repeat("\xff", sanitize.MaxBytes)))
	seen := make(map[string]bool)
	for n := range 100 {
		long := strings.Repeat("a", sanitize.MaxBytes+n) + "b"
		short := sanitize.ShortenText(long)
		assert.LessOrEqual(t, len(short), sanitize.MaxBytes)
		assert.Equal(t, long[:200], short[:200])
		assert.Equal(t, short, sanitize.ShortenText(short))
		assert.Equal(t, short, sanitize.CleanText(long), "CleanText returns the same text")
		assert.False(t, seen[short])
		seen[short] = true
	}
}

func FuzzClean(f *testing.F) {
	f.Add("catalog.test")
	f.Add("\xff.example")
	f.Add(strings.Repeat("\x00", 100))
	f.Add(strings.Repeat("日本", 50))
	f.Fuzz(func(t *testing.T, s string) {
		got := sanitize.CleanText(s)
		assert.True(t, utf8.ValidString(got))
		assert.LessOrEqual(t, len(got), sanitize.MaxBytes)
		assert.Negative(t, strings.IndexFunc(got, unicode.IsControl))
		assert.Equal(t, got, sanitize.CleanText(got), "cleaning twice is cleaning once")
	})
}
