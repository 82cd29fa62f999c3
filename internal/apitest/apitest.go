// Package apitest detects unintended changes of a module's exported API: a test compares the API with a listing in a committed
// file.
package apitest

import (
	"bytes"
	"cmp"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Write is the name of an environment variable. If it is not empty, AssertSameAPI writes the file instead of comparing it. The
// command make api sets it.
const Write = "HEDGE_WRITE_API"

// owner is the common prefix of the import paths of all modules in this repository. Listings omit it.
const owner = "github.com/gohedge/"

// AssertSameAPI fails the test if the exported API of the current module differs from the listing in file. It ignores internal
// packages, commands and packages in the folder test.
func AssertSameAPI(t *testing.T, file string) {
	t.Helper()
	paths := importablePackages(t)
	require.NotEmpty(t, paths)
	got := strings.Join(describePackages(t, paths), "\n") + "\n"
	if os.Getenv(Write) != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	gone, added := Compare(string(text), got)
	assert.Empty(t, gone, "the API lacks declarations that %s lists", file)
	assert.Empty(t, added, "%s lacks declarations of the API", file)
	if t.Failed() {
		t.Logf("if the change is intended, run make api to update %s, and describe the change in CHANGELOG.md", file)
	}
}

// Compare compares two listings of an API line by line. It returns the lines of want that are missing in got (gone), and the
// lines of got that are missing in want (added).
func Compare(want, got string) (gone, added []string) {
	lacks := func(listing, from string) (lines []string) {
		have := strings.Split(listing, "\n")
		slices.Sort(have)
		for line := range strings.Lines(from) {
			line = strings.TrimSuffix(line, "\n")
			if _, ok := slices.BinarySearch(have, line); !ok {
				lines = append(lines, line)
			}
		}
		return lines
	}
	return lacks(got, want), lacks(want, got)
}

// importablePackages returns the import paths of all packages of the current module that other modules can import.
func importablePackages(t *testing.T) (paths []string) {
	for line := range strings.Lines(runGoList(t, "-f", "{{.Name}} {{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./...")) {
		word := strings.Fields(line)
		name, path, module := word[0], word[1], word[2]
		parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "/")
		if name != "main" && parts[0] != "test" && !slices.Contains(parts, "internal") {
			paths = append(paths, path)
		}
	}
	return paths
}

// describePackages returns the listing of all given packages. It reads compiled export data, so that it needs no source code of
// other modules.
func describePackages(t *testing.T, paths []string) (lines []string) {
	exports := make(map[string]string)
	for line := range strings.Lines(runGoList(t, append([]string{"-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, path := range paths {
		pkg, err := imports.Import(path)
		require.NoError(t, err)
		lines = append(lines, Describe(pkg)...)
	}
	return lines
}

// runGoList runs go list with the given arguments and returns its output. It fails the test if go list fails.
func runGoList(t *testing.T, args ...string) string {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	return string(out)
}

// Describe returns a sorted listing of the exported API of pkg. It has a line for each constant, variable, function, type,
// field and method. It omits the names of parameters, because they do not matter to callers.
func Describe(pkg *types.Package) (lines []string) {
	d := describer{pkg: pkg, prefix: "pkg " + strings.TrimPrefix(pkg.Path(), owner) + ", "}
	for _, name := range pkg.Scope().Names() {
		if token.IsExported(name) {
			d.addObject(pkg.Scope().Lookup(name))
		}
	}
	slices.SortFunc(d.lines, cmp.Compare[string])
	return slices.Compact(d.lines)
}

// A describer collects the listing of one package.
type describer struct {
	pkg    *types.Package
	prefix string // start of each line, which names the package
	lines  []string
}

// add appends a line to the listing, which consists of the prefix and the given words.
func (d *describer) add(words ...string) { d.lines = append(d.lines, d.prefix+strings.Join(words, "")) }

// typeString returns the name of a type. The name of a type of another package starts with the name of that package.
func (d *describer) typeString(typ types.Type) string {
	return types.TypeString(typ, func(p *types.Package) string {
		if p == d.pkg {
			return ""
		}
		return p.Name()
	})
}

// addObject appends the lines for an exported constant, variable, function or type.
func (d *describer) addObject(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		d.add("const ", o.Name(), " ", d.typeString(o.Type()), " = ", o.Val().ExactString())
	case *types.Var:
		d.add("var ", o.Name(), " ", d.typeString(o.Type()))
	case *types.Func:
		d.add("func ", o.Name(), d.signature(o.Signature()))
	case *types.TypeName:
		d.addType(o)
	}
}

// signature returns the type parameters, parameter types and result types of a function, without the names of parameters and
// results.
func (d *describer) signature(s *types.Signature) string {
	unnamed := func(tuple *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range tuple.Variables() {
			vars = append(vars, types.NewParam(token.NoPos, nil, "", v.Type()))
		}
		return types.NewTuple(vars...)
	}
	plain := types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())
	return d.typeParams(s.TypeParams()) + strings.TrimPrefix(d.typeString(plain), "func")
}

// typeParams returns a list of type parameters in brackets, with their constraints. It returns "" if there are none.
func (d *describer) typeParams(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var params []string
	for p := range list.TypeParams() {
		params = append(params, p.Obj().Name()+" "+d.typeString(p.Constraint()))
	}
	return "[" + strings.Join(params, ", ") + "]"
}

// addType appends the lines for a type with its fields and methods. An alias of a type that users cannot import also gets the
// fields and methods of that type.
func (d *describer) addType(o *types.TypeName) {
	named, ok := types.Unalias(o.Type()).(*types.Named)
	switch {
	case o.IsAlias() && (!ok || !isHiddenType(named.Obj())):
		d.add("type ", o.Name(), " = ", d.typeString(types.Unalias(o.Type())))
		return
	case o.IsAlias():
		d.add("type ", o.Name(), " = ", d.typeString(named))
	}
	head := "type " + o.Name() + d.typeParams(named.TypeParams())
	switch under := named.Underlying().(type) {
	case *types.Struct:
		d.add(head, " struct")
		d.addFields(head, under)
	case *types.Interface:
		d.add(head, " interface")
		d.addInterfaceMethods(head, under)
		return
	default:
		d.add(head, " ", d.typeString(under))
	}
	d.addMethods(o.Name(), named)
}

// isHiddenType reports whether other modules cannot refer to the type by its name, because it is not exported or is in an
// internal package.
func isHiddenType(o *types.TypeName) bool {
	return o.Pkg() != nil && (!o.Exported() || slices.Contains(strings.Split(o.Pkg().Path(), "/"), "internal"))
}

// addFields appends a line for each exported field of a struct. The argument head is the description of the struct type.
func (d *describer) addFields(head string, s *types.Struct) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if !f.Exported() {
			continue
		}
		words := []string{head, " struct, ", f.Name(), " ", d.typeString(f.Type())}
		if f.Embedded() {
			words = append(words, ", embedded")
		}
		if tag := s.Tag(i); tag != "" {
			words = append(words, " `", tag, "`")
		}
		d.add(words...)
	}
}

// addInterfaceMethods appends a line for each method of the interface i. If i is a constraint, it also appends a line with the
// constraint. The argument head is the description of the interface type.
func (d *describer) addInterfaceMethods(head string, i *types.Interface) {
	for m := range i.Methods() {
		if m.Exported() {
			d.add(head, " interface, ", m.Name(), d.signature(m.Signature()))
		} else {
			d.add(head, " interface, only this package implements it")
		}
	}
	if !i.IsMethodSet() {
		d.add(head, " interface, ", d.typeString(i)) // a constraint
	}
}

// addMethods appends a line for each exported method of the named type, including promoted methods of embedded types.
func (d *describer) addMethods(name string, named *types.Named) {
	values := types.NewMethodSet(named)
	for selection := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		m := selection.Obj().(*types.Func)
		if !m.Exported() {
			continue
		}
		receiver := "*" + name
		if values.Lookup(m.Pkg(), m.Name()) != nil {
			receiver = name
		}
		d.add("method (", receiver, ") ", m.Name(), d.signature(m.Signature()))
	}
}
