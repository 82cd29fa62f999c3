package repo_test

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pageCommand is a command that a page tells its readers to run.
type pageCommand struct {
	page  string
	words []string // without the prompt, comments and quotes
}

func (c pageCommand) String() string { return c.page + ": " + strings.Join(c.words, " ") }

// TestCommandsInDocumentsExist checks the commands in documents against the repository, without running them: make targets and
// variables, scripts, directories, flags of programs and tests, patterns of tests, packages and names of go doc, variables of the
// environment.
func TestCommandsInDocumentsExist(t *testing.T) {
	checked := make(map[string]int) // by program
	for _, c := range commandsInDocuments(t) {
		words := c.words
		for len(words) > 0 && assignment.MatchString(words[0]) {
			name, _, _ := strings.Cut(words[0], "=")
			if strings.Contains(name, "_") {
				assert.Contains(t, sources(t, "*/*.go", "*/*/*.go"), `"`+name+`"`, "%s: variable %s", c, name)
			}
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		checked[words[0]]++
		switch program := words[0]; {
		case program == "make":
			checkMake(t, c, words[1:])
		case program == "bash":
			assert.FileExists(t, words[1], "%s", c)
		case strings.HasPrefix(program, ".ci/"):
			assert.FileExists(t, program, "%s", c)
		case program == "./dnsforward":
			checkFlags(t, c, "examples/dnsforward", words[1:])
		case program == "go":
			checkGo(t, c, words[1:])
		}
	}
	assert.Greater(t, checked["go"], 50)
	assert.Greater(t, checked["make"], 5)
}

// assignment matches a variable of the environment, or of make, with its value.
var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// commandsInDocuments returns the commands in shell blocks, in indented blocks, and between backquotes.
func commandsInDocuments(t *testing.T) (all []pageCommand) {
	block, shell := regexp.MustCompile("(?s)```(\\w*)\n(.*?)```"), []string{"sh", "bash"}
	inline := regexp.MustCompile("(?m)^    (\\S.*)$|`([^`\n]+)`")
	command := regexp.MustCompile(`^([A-Z_]+=\S+ )*(go (run|test|build|doc|get|generate|-C) |make( |$)|bash |\.ci/|\./dnsforward )`)
	for _, page := range documents(t) {
		text := sources(t, page)
		var lines []string
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			if slices.Contains(shell, m[1]) {
				lines = append(lines, strings.Split(strings.ReplaceAll(m[2], "\\\n", " "), "\n")...)
			}
		}
		for _, m := range inline.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
			lines = append(lines, m[1]+m[2])
		}
		for _, line := range lines {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			if command.MatchString(line) {
				all = append(all, pageCommand{page, strings.Fields(strings.NewReplacer(`'`, "", `"`, "").Replace(line))})
			}
		}
	}
	return all
}

func checkMake(t *testing.T, c pageCommand, words []string) {
	makefile := sources(t, "Makefile")
	for _, word := range words {
		if name, _, isVariable := strings.Cut(word, "="); isVariable {
			assert.Contains(t, makefile, "$("+name+")", "%s", c)
		} else {
			assert.Regexp(t, "(?m)^"+regexp.QuoteMeta(word)+":", makefile, "%s", c)
		}
	}
}

// goTestFlags are the flags of go run, go build and go test in documents, and whether their value is the next word.
var goTestFlags = map[string]bool{
	"-v": false, "-race": false, "-shuffle": false, "-count": false, "-args": false, "-run": true, "-bench": true, "-tags": true,
}

// checkGo checks the words after go.
func checkGo(t *testing.T, c pageCommand, words []string) {
	dir := "."
	if words[0] == "-C" {
		dir, words = words[1], words[2:]
	}
	if !assert.DirExists(t, dir, "%s", c) {
		return
	}
	switch words[0] {
	case "doc":
		checkGoDoc(t, c, words[1:])
		return
	case "get":
		name, _, _ := strings.Cut(words[1], "@")
		assert.FileExists(t, path.Join(".", strings.TrimPrefix(name, module), "go.mod"), "%s", c)
		return
	}
	patterns := make(map[string]string)
	var packages, flags []string
	for words = words[1:]; len(words) > 0; words = words[1:] {
		name, _, _ := strings.Cut(words[0], "=")
		hasValue, isGoFlag := goTestFlags[name]
		switch {
		case isGoFlag && hasValue:
			patterns[name], words = words[1], words[1:]
		case isGoFlag:
		case strings.HasPrefix(words[0], "-"):
			flags = append(flags, name)
		case strings.HasPrefix(words[0], "."):
			packages = append(packages, path.Join(dir, words[0]))
		}
	}
	if tag := patterns["-tags"]; tag != "" {
		assert.Contains(t, sources(t, "*.go"), "//go:build !"+tag+"\n", "%s", c)
	}
	for _, pkg := range packages {
		if strings.HasSuffix(pkg, "...") {
			continue
		}
		code := sources(t, pkg+"/*.go")
		if !assert.NotEmpty(t, code, "%s: no Go files in %s", c, pkg) {
			continue
		}
		checkPattern(t, c, code, "Test", patterns["-run"])
		checkPattern(t, c, code, "Benchmark", patterns["-bench"])
		checkFlags(t, c, pkg, flags)
	}
}

// checkPattern checks that the pattern matches the name of a function that begins with prefix. "^$" stands for no function.
func checkPattern(t *testing.T, c pageCommand, code, prefix, pattern string) {
	if pattern == "" || pattern == "^$" {
		return
	}
	names := regexp.MustCompile(`(?m)^func (`+prefix+`\w+)\(`).FindAllStringSubmatch(code, -1)
	found := slices.ContainsFunc(names, func(name []string) bool { return regexp.MustCompile(pattern).MatchString(name[1]) })
	assert.True(t, found, "%s: no function of that name", c)
}

// checkFlags checks that the Go files of a directory define the flags among words.
func checkFlags(t *testing.T, c pageCommand, dir string, words []string) {
	code := sources(t, dir+"/*.go")
	for _, word := range words {
		if name, isFlag := strings.CutPrefix(word, "-"); isFlag {
			name, _, _ = strings.Cut(name, "=")
			assert.Contains(t, code, `"`+name+`"`, "%s: flag -%s", c, name)
		}
	}
}

// checkGoDoc checks the arguments of go doc: the path of a package and a name, or hedge.NAME.
func checkGoDoc(t *testing.T, c pageCommand, words []string) {
	pkg, isPath := strings.CutPrefix(words[0], module)
	name := strings.Join(words[1:], "")
	if !isPath {
		pkg, name, _ = strings.Cut(words[0], ".")
		assert.Equal(t, "hedge", pkg, "%s", c)
		pkg = ""
	}
	code := sources(t, filepath.Join(".", pkg, "*.go"))
	assert.Regexp(t, `(?m)^(func|type) `+name, code, "%s", c)
}

// TestURLsOfThisRepositoryLeadSomewhere checks links to files of this repository on GitHub and to documentation of its packages, in
// documents and in Go files.
func TestURLsOfThisRepositoryLeadSomewhere(t *testing.T) {
	file := regexp.MustCompile(regexp.QuoteMeta(module) + `/blob/main/([\w./-]+)(?:#([\w-]+))?`)
	doc := regexp.MustCompile(`pkg\.go\.dev/` + regexp.QuoteMeta(module) + `((?:/\w+)*)(?:#(\w+))?`)
	files := documents(t)
	for _, pattern := range []string{"*.go", "*/*.go", "*/*/*.go", "*/*.yaml"} {
		match, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, match...)
	}
	links := 0
	for _, from := range files {
		text := sources(t, from)
		for _, m := range file.FindAllStringSubmatch(text, -1) {
			links++
			if assert.FileExists(t, m[1], "%s", from) && m[2] != "" {
				assert.Contains(t, headings(sources(t, m[1])), m[2], "%s links to %s", from, m[0])
			}
		}
		for _, m := range doc.FindAllStringSubmatch(text, -1) {
			links++
			code := sources(t, path.Join(".", m[1], "*.go"))
			assert.NotEmpty(t, code, "%s links to %s", from, m[0])
			assert.Regexp(t, `(?m)^(func|type) `+m[2], code, "%s links to %s", from, m[0])
		}
	}
	assert.Greater(t, links, 5)
}
