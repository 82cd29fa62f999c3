package repo_test

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nested are the modules below the root that are released with it.
var nested = []string{"hedgeprom", "hedgeotel", "dnshedge/quic"}

// TestReleasedModulesCanBeGotWithoutTheRoot follows docs/design/releasing.md on a copy of the tree, up to the tags. A module proxy in
// a directory takes the place of the tags. What other modules are needed comes from the module cache; the network is not used.
// Where the cache lacks one of them, the test is skipped: make release-check fills the cache first.
func TestReleasedModulesCanBeGotWithoutTheRoot(t *testing.T) {
	const version = "v0.1000.0"
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS == "windows" {
		t.Skip("the recipe is a bash script")
	}
	cache := "file://" + filepath.ToSlash(strings.TrimSpace(output(t, ".", nil, "go", "env", "GOMODCACHE"))) + "/cache/download"
	env := []string{
		"GOPROXY=" + cache, "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=none", "GOVCS=*:off",
		"GOMODCACHE=" + t.TempDir(), "GOFLAGS=-modcacherw", "GOWORK=off", "GOTOOLCHAIN=local",
	}
	tree := t.TempDir()
	copyTree(t, tree)
	changed := output(t, tree, nil, "bash", ".ci/release", version)
	assert.Contains(t, changed, "./examples/prometheus/go.mod: "+module+"/hedgeprom "+version)

	proxy := t.TempDir()
	publish(t, proxy, tree, module, version)
	for _, name := range nested {
		publish(t, proxy, filepath.Join(tree, name), module+"/"+name, version)
	}
	env[0] = "GOPROXY=file://" + filepath.ToSlash(proxy) + "," + cache
	for _, name := range nested {
		user := consume(t, env, module+"/"+name)
		assert.Equal(t, module+" "+version+"\n", output(t, user, env, "go", "list", "-m", module), "the root comes along")
		deps := output(t, user, env, "go", "list", "-mod=readonly", "-deps", ".")
		assert.Contains(t, deps, module+"/observe\n", "every import is found")
		assert.NotContains(t, deps, "google.golang.org/grpc\n", "observers of DNS alone need not carry it")
	}
}

// absent finds the file that a module proxy in a directory has not.
var absent = regexp.MustCompile(`reading (file://\S+\.(?:info|mod|zip)): no such file or directory`)

// consume gets a module for a program of its own, and finds all that the program imports. It returns the program's folder.
// If a module of others is missing it skips the test: that says what the machine has, and nothing about the release.
func consume(t *testing.T, env []string, path string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeFile(t, dir, "go.mod", "module example.com/user\n\n"+goDirective(t)+"\n")
	writeFile(t, dir, "main.go", fmt.Sprintf("package main\n\nimport _ %q\n\nfunc main() {}\n", path))
	for _, args := range [][]string{{"get", path}, {"list", "-mod=readonly", "-deps", "."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		err := cmd.Run()
		file := absent.FindStringSubmatch(stderr.String())
		if err != nil && file != nil && !strings.Contains(file[1], "/"+module+"/") {
			t.Skipf("the module cache lacks what users of %s need: %s", path, file[1])
		}
		require.NoError(t, err, "%s\n%s", cmd, &stderr)
	}
	return dir
}

// goDirective is the line of go.mod that says which Go this module needs.
func goDirective(t *testing.T) string {
	line := regexp.MustCompile(`(?m)^go \d+\.\d+(\.\d+)?$`).FindString(sources(t, "go.mod"))
	require.NotEmpty(t, line)
	return line
}

// output returns what a command prints, and fails the test if the command fails.
func output(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", cmd, &stderr)
	return string(out)
}

func writeFile(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// copyTree copies the repository, without its history and what was measured.
func copyTree(t *testing.T, to string) {
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git", filepath.ToSlash(name) == "benchmark/out":
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(name)
		if err == nil {
			writeFile(t, to, name, string(text))
		}
		return err
	}))
}

// publish adds the module in dir to a proxy, as the module proxy protocol wants it: go help goproxy.
func publish(t *testing.T, proxy, dir, path, version string) {
	at := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	writeFile(t, at, "list", version+"\n")
	writeFile(t, at, version+".info", fmt.Sprintf("{%q: %q, %q: %q}", "Version", version, "Time", "2026-01-01T00:00:00Z"))
	writeFile(t, at, version+".mod", string(mod))

	file, err := os.Create(filepath.Join(at, version+".zip"))
	require.NoError(t, err)
	defer file.Close()
	archive := zip.NewWriter(file)
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil && name != dir {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		inside, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		to, err := archive.Create(path + "@" + version + "/" + filepath.ToSlash(inside))
		if err != nil {
			return err
		}
		from, err := os.Open(name)
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(to, from)
		return err
	}))
	require.NoError(t, archive.Close())
}
