package doubles

import (
	"slices"
	"strings"
	"testing"
)

// Has fails the test if the content of a document lacks text. It prints the text and not the document.
func Has(t testing.TB, document, content, text string) {
	t.Helper()
	if !strings.Contains(content, text) {
		t.Errorf("%s lacks %q", document, text)
	}
}

// SameNames fails the test for each name that exists and is not documented, is documented and does not exist, or is documented twice.
func SameNames(t testing.TB, document string, exist, documented []string) {
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
