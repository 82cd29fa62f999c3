// Command weight measures the size of programs that use hedge, the modules linked into them, and all modules that they
// require, also indirectly. It fails if a number is above its limit.
//
//	go run ./benchmark/weight
//
// It builds each program in a module of its own that uses the version in the working directory. It needs a network if
// the module cache lacks a module. Sizes are those of stripped programs without cgo, in megabytes of 10⁶ bytes.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	if err := measurePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, "weight:", err)
		os.Exit(1)
	}
}

// measurePrograms builds the programs, with and without this library, and prints a table of their sizes and modules. It
// returns an error that names each figure above its limit.
func measurePrograms() error {
	required, err := readRequirements()
	if err != nil {
		return err
	}
	footprints := make(map[string]footprint)
	for _, p := range programs {
		if footprints[p.title], err = measureProgram(required, p); err != nil {
			return fmt.Errorf("%s: %w", p.title, err)
		}
	}
	over := []error{checkLimit("go.mod", "modules required", int64(required.direct), 9), checkLimit("go.mod", "modules required indirectly", int64(required.indirect), 9)}
	for _, p := range programs {
		w := footprints[p.title]
		over = append(over,
			checkLimit(p.title, "bytes more", w.bytes-footprints[p.baseline].bytes, p.limit.bytes),
			checkLimit(p.title, "modules linked", int64(w.linked), int64(p.limit.linked)),
			checkLimit(p.title, "modules listed, those of grpc-go not counted", int64(w.listed-footprints[baselineGRPC].listed), int64(p.limit.listed)))
	}
	fmt.Print(formatTable(required, footprints))
	return errors.Join(over...)
}

// A footprint is the size of a built program and the number of its modules.
type footprint struct {
	bytes  int64
	linked int // modules in the program
	listed int // modules that go list -m all names
}

// A footprintLimit has the largest size and the largest numbers of modules that a program may have. 0 means no limit.
type footprintLimit struct {
	bytes  int64 // beyond the bytes of the program to which it is compared
	linked int
	listed int // beyond the modules of a program with grpc-go alone
}

// checkLimit returns an error if number is above limit, unless limit is 0. owner is the program or file, and unit says
// what is counted, for example modules.
func checkLimit(owner, unit string, number, limit int64) error {
	if limit > 0 && number > limit {
		return fmt.Errorf("%s: %d %s; at most %d are allowed", owner, number, unit, limit)
	}
	return nil
}

func formatTable(required moduleRequirements, footprints map[string]footprint) string {
	var b strings.Builder
	b.WriteString("| program | stripped | more | modules linked | `go list -m all` |\n|---|--:|--:|--:|--:|\n")
	for _, p := range programs {
		w, more := footprints[p.title], "–"
		if p.baseline != "" {
			more = formatMB(w.bytes - footprints[p.baseline].bytes)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d |\n", p.title, formatMB(w.bytes), more, w.linked, w.listed)
	}
	fmt.Fprintf(&b, "\n`go.mod` of this module requires %d modules directly and %d indirectly.\n", required.direct, required.indirect)
	fmt.Fprintf(&b, "`make weight`; %s, %s/%s, the versions in `go.mod`, without cgo.\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return b.String()
}

func formatMB(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// A moduleRequirements has the requirements, the folder and the version of Go of this library's module.
type moduleRequirements struct {
	dir, goVersion   string
	direct, indirect int
	requires         map[string]string // versions by module path, including the peers in the benchmark's go.mod
}

// readRequirements returns the requirements in the go.mod files of this library and of the benchmark.
func readRequirements() (required moduleRequirements, err error) {
	text, err := runGo(".", "list", "-m", "-f", "{{.Dir}}", hedgePath)
	if err != nil {
		return required, err
	}
	required.dir = strings.TrimSpace(text)
	peers, err := readModFile(filepath.Join(required.dir, "benchmark"))
	if err != nil {
		return required, err
	}
	mod, err := readModFile(required.dir)
	if err != nil {
		return required, err
	}
	required.goVersion, required.requires = mod.Go, make(map[string]string)
	for _, r := range peers.Require {
		required.requires[r.Path] = r.Version
	}
	for _, r := range mod.Require {
		if r.Indirect {
			required.indirect++
		} else {
			required.direct++
			required.requires[r.Path] = r.Version
		}
	}
	return required, nil
}

// A modFile has the parts of a go.mod file that this command needs.
type modFile struct {
	Go      string
	Require []struct {
		Path, Version string
		Indirect      bool
	}
}

func readModFile(dir string) (mod modFile, err error) {
	text, err := runGo(dir, "mod", "edit", "-json")
	if err != nil {
		return mod, err
	}
	return mod, json.Unmarshal([]byte(text), &mod)
}

// measureProgram builds program p in a temporary module, and returns its size and how many modules it links and lists.
func measureProgram(required moduleRequirements, p program) (w footprint, err error) {
	dir, err := os.MkdirTemp("", "weight")
	if err != nil {
		return w, err
	}
	defer os.RemoveAll(dir)
	var sums []byte
	for _, module := range []string{".", "benchmark"} {
		text, err := os.ReadFile(filepath.Join(required.dir, module, "go.sum"))
		if err != nil {
			return w, err
		}
		sums = append(sums, text...)
	}
	mod := fmt.Sprintf("module example.com/user\n\ngo %s\n\nreplace %s => %q\n", required.goVersion, hedgePath, required.dir)
	for path, version := range required.requires {
		if strings.Contains(p.source, path) {
			mod += fmt.Sprintf("require %s %s\n", path, version)
		}
	}
	if strings.Contains(p.source, hedgePath) {
		mod += fmt.Sprintf("require %s v0.0.0\n", hedgePath)
	}
	for name, text := range map[string][]byte{"go.mod": []byte(mod), "go.sum": sums, "main.go": []byte(p.source)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return w, err
		}
	}
	if _, err := runGo(dir, "mod", "tidy"); err != nil {
		return w, err
	}
	if _, err := runGo(dir, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-tags", p.tags, "-o", "program"); err != nil {
		return w, err
	}
	built, err := os.Stat(filepath.Join(dir, "program"))
	if err != nil {
		return w, err
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		return w, err
	}
	listed, err := runGo(dir, "list", "-m", "all")
	if err != nil {
		return w, err
	}
	return footprint{bytes: built.Size(), linked: len(info.Deps), listed: strings.Count(listed, "\n")}, nil
}

// runGo returns the output of the go command in the folder dir, without workspaces, cgo and the caller's GOFLAGS.
func runGo(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), nil
}
