package dnssec_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestOptionsPageListsValidatorFields keeps its table in docs/options.md whole, and without fields that are gone.
func TestOptionsPageListsValidatorFields(t *testing.T) {
	var exist, documented []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[dnssec.Validator]()) {
		if f.IsExported() {
			exist = append(exist, f.Name)
		}
	}
	doc, err := os.ReadFile("../../docs/options.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(doc), "| field of `dnssec.Validator` |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)`").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	doubles.AssertSameNames(t, "docs/options.md", exist, documented)
}
