package apitest_test

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/apitest"
)

func check(t *testing.T, source string) *types.Package {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "tea.go", "package tea\n"+source, 0)
	require.NoError(t, err)
	conf := types.Config{Importer: importer.Default()}
	pkg, err := conf.Check("github.com/gohedge/tea", fset, []*ast.File{file}, nil)
	require.NoError(t, err)
	return pkg
}

func TestDescribeListsEveryKindOfDeclaration(t *testing.T) {
	for _, test := range []struct {
		source string
		want   []string
	}{
		{"const Hot = 3; const cold = 4", []string{"const Hot untyped int = 3"}},
		{"type Heat uint8; const Hot Heat = 1", []string{"const Hot Heat = 1", "type Heat uint8"}},
		{"var ErrCold error; var cup int", []string{"var ErrCold error"}},
		{"func Brew(leaves int, more ...string) (cups int, err error) { return }", []string{"func Brew(int, ...string) (int, error)"}},
		{"func Mix[T any](a, b T) T { return a }", []string{"func Mix[T any](T, T) T"}},
		{"type Cup struct { Full bool `json:\"full\"`; crack int }", []string{"type Cup struct", "type Cup struct, Full bool `json:\"full\"`"}},
		{"type Cup struct{}; func (Cup) Drink() {}; func (*Cup) Fill(int) {}; func (*Cup) wash() {}",
			[]string{"method (*Cup) Fill(int)", "method (Cup) Drink()", "type Cup struct"}},
		{"type Pot interface { Pour() error }", []string{"type Pot interface", "type Pot interface, Pour() error"}},
		{"type Pot interface { pour() }", []string{"type Pot interface", "type Pot interface, only this package implements it"}},
		{"type Number interface { ~int | ~float64 }", []string{"type Number interface", "type Number interface, interface{~int | ~float64}"}},
		{"type Set[K comparable] map[K]bool", []string{"type Set[K comparable] map[K]bool"}},
		{"type Strings = []string", []string{"type Strings = []string"}},
		{"type cup struct{ Full bool }; type Cup = cup", []string{"type Cup = cup", "type Cup struct", "type Cup struct, Full bool"}},
		{"type lid struct{}; func (lid) Lift() {}; type Cup struct{ lid }", []string{"method (Cup) Lift()", "type Cup struct"}},
		{"type Lid struct{}; type Cup struct{ *Lid }", []string{"type Cup struct", "type Cup struct, Lid *Lid, embedded", "type Lid struct"}},
	} {
		for i := range test.want {
			test.want[i] = "pkg tea, " + test.want[i]
		}
		assert.Equal(t, test.want, apitest.Describe(check(t, test.source)), test.source)
	}
}

func TestCompareReportsEveryChange(t *testing.T) {
	describe := func(source string) (describePackages string) {
		for _, line := range apitest.Describe(check(t, source)) {
			describePackages += line + "\n"
		}
		return describePackages
	}
	const before = "type Cup struct { Full bool }; func Brew(leaves int) Cup { return Cup{} }"
	for after, want := range map[string][2][]string{
		"type Cup struct { Full bool; crack int }; func Brew(l int) Cup { return Cup{} }": {},
		"type Cup struct { Full bool }":                                               {{"pkg tea, func Brew(int) Cup"}, nil},
		"type Cup struct { Full bool }; func Brew(leaves int64) Cup { return Cup{} }": {{"pkg tea, func Brew(int) Cup"}, {"pkg tea, func Brew(int64) Cup"}},
		"type Cup struct { Full, Hot bool }; func Brew(int) Cup { return Cup{} }":     {nil, {"pkg tea, type Cup struct, Hot bool"}},
	} {
		gone, added := apitest.Compare(describe(before), describe(after))
		assert.Equal(t, want, [2][]string{gone, added}, after)
	}
}
