package doubles

import (
	"slices"
	"strings"
	"testing"
)

// AssertContains fails the test if content does not contain text. The argument document is the name of the document in the
// failure message, which does not show the content.
func AssertContains(t testing.TB, document, content, text string) {
	t.Helper()
	if !strings.Contains(content, text) {
		t.Errorf("%s lacks %q", document, text)
	}
}

// AssertSameNames fails the test unless the document describes exactly the names that exist. It reports each name that is not
// documented, is documented but does not exist, or is documented twice.
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
