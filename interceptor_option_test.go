package hedge_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheOtherFilesNeedNoInterceptor type-checks the root without its interceptor*.go, and debug without its own upon that:
// build lines in those files are enough to leave gRPC out.
func TestTheOtherFilesNeedNoInterceptor(t *testing.T) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", ".", "./debug").Output()
	require.NoError(t, err)
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	packages := make(map[string]listed)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		packages[p.ImportPath] = p
	}
	fset := token.NewFileSet()
	imports := withoutInterceptors{importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(packages[path].Export)
	}), make(map[string]*types.Package)}
	for _, path := range []string{module, module + "/debug"} {
		p := packages[path]
		var files []*ast.File
		for _, name := range p.GoFiles {
			if strings.HasPrefix(name, "interceptor") {
				continue
			}
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
		assert.Less(t, len(files), len(p.GoFiles), "%s has interceptors", path)
		conf := types.Config{Importer: imports, Error: func(err error) { t.Error(err) }}
		checked, err := conf.Check(path, fset, files, nil)
		require.NoError(t, err)
		imports.checked[path] = checked
	}
	assert.Nil(t, imports.checked[module].Scope().Lookup("Interceptor"))
	for _, p := range imports.checked[module].Imports() {
		assert.NotContains(t, p.Path(), "google.golang.org/")
	}
}

// withoutInterceptors imports packages as they were checked, and the others as they are.
type withoutInterceptors struct {
	types.Importer
	checked map[string]*types.Package
}

func (w withoutInterceptors) Import(path string) (*types.Package, error) {
	if p := w.checked[path]; p != nil {
		return p, nil
	}
	return w.Importer.Import(path)
}
