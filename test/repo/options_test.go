package repo_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/ops"
)

// TestEveryOptionSaysWhereItHasAnEffect reads the functions that return options: each passes its own name on, for which package ops knows
// where it has an effect.
func TestEveryOptionSaysWhereItHasAnEffect(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	seen := 0
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), ".go") || strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() || !returnsOption(f) {
				continue
			}
			seen++
			name, named, sets := f.Name.Name, false, false
			ast.Inspect(f.Body, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				named = named || ok && lit.Value == `"`+name+`"`
				id, ok := n.(*ast.Ident)
				sets = sets || ok && id.Name == "setting"
				return true
			})
			assert.True(t, named, "%s passes its name on", name)
			unused := ops.Unused("a protocol that there is not", []string{name})
			require.Len(t, unused, 1, name)
			assert.NotEqual(t, name+" is for ", unused[0], "package ops does not know where %s has an effect", name)
			if sets && name != "WithConfig" {
				assert.Equal(t, []string{name + " has no effect before WithConfig"}, ops.Unused("http", []string{name, "WithConfig"}))
			}
		}
	}
	assert.Greater(t, seen, 30)
}

func returnsOption(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	id, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return ok && id.Name == "Option"
}
