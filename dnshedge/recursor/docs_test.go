package recursor_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestOptionsPageListsResolverFields requires that the second table in docs/options.md has all fields of Resolver
// and no others.
func TestOptionsPageListsResolverFields(t *testing.T) {
	var exist, documented []string
	var add func(prefix string, typ reflect.Type)
	add = func(prefix string, typ reflect.Type) {
		for _, f := range reflect.VisibleFields(typ) {
			switch {
			case !f.IsExported():
			case f.Type.Kind() == reflect.Struct:
				add(prefix+f.Name+".", f.Type)
			default:
				exist = append(exist, prefix+f.Name)
			}
		}
	}
	add("", reflect.TypeFor[recursor.Resolver]())
	doc, err := os.ReadFile("../../docs/options.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(doc), "| field of `recursor.Resolver` |")
	require.True(t, found)
	for row := range strings.Lines(table) {
		name, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " |")
		for _, m := range regexp.MustCompile("`([\\w.]+)`").FindAllStringSubmatch(name, -1) {
			documented = append(documented, m[1])
		}
	}
	doubles.AssertSameNames(t, "docs/options.md", exist, documented)
}
