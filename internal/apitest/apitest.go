// Package apitest keeps the exported API of a module from changing unnoticed: a test compares it with a file that is committed.
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

// Write is the variable of the environment with which Same writes the file instead of comparing with it: make api.
const Write = "HEDGE_WRITE_API"

// owner begins the import path of every package of this repository, and is left out in listings.
const owner = "github.com/gohedge/"

// Same fails the test if the exported API of the module around the test differs from the file. Internal packages, commands and
// folder test have no part in it.
func Same(t *testing.T, file string) {
	t.Helper()
	paths := importable(t)
	require.NotEmpty(t, paths)
	got := strings.Join(listing(t, paths), "\n") + "\n"
	if os.Getenv(Write) != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	gone, added := Compare(string(text), got)
	assert.Empty(t, gone, "the API has lost what %s lists", file)
	assert.Empty(t, added, "%s lacks what the API has", file)
	if t.Failed() {
		t.Logf("if this is meant, make api writes %s, and CHANGELOG.md tells users what to do", file)
	}
}

// Compare returns the lines of the one listing that the other lacks, and those that it has besides.
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

// importable returns the paths of the packages that other modules can import.
func importable(t *testing.T) (paths []string) {
	for line := range strings.Lines(golist(t, "-f", "{{.Name}} {{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./...")) {
		word := strings.Fields(line)
		name, path, module := word[0], word[1], word[2]
		parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "/")
		if name != "main" && parts[0] != "test" && !slices.Contains(parts, "internal") {
			paths = append(paths, path)
		}
	}
	return paths
}

// listing describes packages as they are compiled, which needs nothing but what their module requires.
func listing(t *testing.T, paths []string) (lines []string) {
	exports := make(map[string]string)
	for line := range strings.Lines(golist(t, append([]string{"-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...)) {
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

func golist(t *testing.T, args ...string) string {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	return string(out)
}

// Describe lists what a package exports, a line for each constant, variable, function, type, field and method. The name of a
// parameter is no part of an API, and neither is the order of declarations.
func Describe(pkg *types.Package) (lines []string) {
	d := describer{pkg: pkg, prefix: "pkg " + strings.TrimPrefix(pkg.Path(), owner) + ", "}
	for _, name := range pkg.Scope().Names() {
		if token.IsExported(name) {
			d.object(pkg.Scope().Lookup(name))
		}
	}
	slices.SortFunc(d.lines, cmp.Compare[string])
	return slices.Compact(d.lines)
}

type describer struct {
	pkg    *types.Package
	prefix string
	lines  []string
}

func (d *describer) add(words ...string) { d.lines = append(d.lines, d.prefix+strings.Join(words, "")) }

// text names types of the same package as they are, and others with their package.
func (d *describer) text(typ types.Type) string {
	return types.TypeString(typ, func(p *types.Package) string {
		if p == d.pkg {
			return ""
		}
		return p.Name()
	})
}

func (d *describer) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		d.add("const ", o.Name(), " ", d.text(o.Type()), " = ", o.Val().ExactString())
	case *types.Var:
		d.add("var ", o.Name(), " ", d.text(o.Type()))
	case *types.Func:
		d.add("func ", o.Name(), d.signature(o.Signature()))
	case *types.TypeName:
		d.typeName(o)
	}
}

// signature leaves the names of parameters and results out.
func (d *describer) signature(s *types.Signature) string {
	unnamed := func(tuple *types.Tuple) *types.Tuple {
		var vars []*types.Var
		for v := range tuple.Variables() {
			vars = append(vars, types.NewParam(token.NoPos, nil, "", v.Type()))
		}
		return types.NewTuple(vars...)
	}
	plain := types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())
	return d.typeParams(s.TypeParams()) + strings.TrimPrefix(d.text(plain), "func")
}

func (d *describer) typeParams(list *types.TypeParamList) string {
	if list.Len() == 0 {
		return ""
	}
	var params []string
	for p := range list.TypeParams() {
		params = append(params, p.Obj().Name()+" "+d.text(p.Constraint()))
	}
	return "[" + strings.Join(params, ", ") + "]"
}

// typeName describes a type. An alias of a type that users cannot import is described by what that has: nothing else says it.
func (d *describer) typeName(o *types.TypeName) {
	named, ok := types.Unalias(o.Type()).(*types.Named)
	switch {
	case o.IsAlias() && (!ok || !hidden(named.Obj())):
		d.add("type ", o.Name(), " = ", d.text(types.Unalias(o.Type())))
		return
	case o.IsAlias():
		d.add("type ", o.Name(), " = ", d.text(named))
	}
	head := "type " + o.Name() + d.typeParams(named.TypeParams())
	switch under := named.Underlying().(type) {
	case *types.Struct:
		d.add(head, " struct")
		d.fields(head, under)
	case *types.Interface:
		d.add(head, " interface")
		d.interfaceMethods(head, under)
		return
	default:
		d.add(head, " ", d.text(under))
	}
	d.methods(o.Name(), named)
}

// hidden reports whether users of other modules cannot name a type.
func hidden(o *types.TypeName) bool {
	return o.Pkg() != nil && (!o.Exported() || slices.Contains(strings.Split(o.Pkg().Path(), "/"), "internal"))
}

func (d *describer) fields(head string, s *types.Struct) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if !f.Exported() {
			continue
		}
		words := []string{head, " struct, ", f.Name(), " ", d.text(f.Type())}
		if f.Embedded() {
			words = append(words, ", embedded")
		}
		if tag := s.Tag(i); tag != "" {
			words = append(words, " `", tag, "`")
		}
		d.add(words...)
	}
}

func (d *describer) interfaceMethods(head string, i *types.Interface) {
	for m := range i.Methods() {
		if m.Exported() {
			d.add(head, " interface, ", m.Name(), d.signature(m.Signature()))
		} else {
			d.add(head, " interface, only this package implements it")
		}
	}
	if !i.IsMethodSet() {
		d.add(head, " interface, ", d.text(i)) // a constraint
	}
}

// methods lists also what a type has from those that it embeds.
func (d *describer) methods(name string, named *types.Named) {
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
