package doubles

import (
	"slices"
	"strings"
	"testing"
)

// AssertContains fails the test if the content of the document lacks text. The failure shows text, but not the content.
func AssertContains(t testing.TB, document, content, text string) {
	t.Helper()
	if !strings.Contains(content, text) {
		t.Errorf("%s lacks %q", document, text)
	}
}

// AssertSameNames fails the test for each name that exists and is not documented, that is documented and does not exist, or that is
// documented twice.
func AssertSameNames(t testing.TB, document string, exist, documented []string) {
	t.Helper()
	for _, name := range exist {
		if !slices.Contains(documented, name) {
			t.Errorf("%s lacks %s", document, name)
		}
	}
	for i, name := range documented {
		if !slices.Contains(exist, name) {
			t.Errorf("%s has %s, which does not exist", document, name)
		}
		if slices.Contains(documented[:i], name) {
			t.Errorf("%s has %s twice", document, name)
		}
	}
}
