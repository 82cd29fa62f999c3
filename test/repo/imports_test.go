package repo_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/gohedge/hedge"

// TestArrowsPointDown forbids imports, direct or not, that the architecture does.
func TestArrowsPointDown(t *testing.T) {
	const grpc = "google.golang.org/grpc"
	for _, rule := range []struct {
		from   string
		never  []string // an import path, or all below one
		reason string
	}{
		{"internal/race", []string{"github.com", "golang.org", "google.golang.org"}, "the mechanism stands on the standard library alone"},
		{"internal/loser", []string{module + "/internal/policy", grpc, "net/http"}, "how a loser ends is a matter of its attempt and its connection"},
		{"sketch", []string{module + "/internal", grpc, "net/http"}, "a window is useful by itself"},
		{"internal/policy", []string{grpc, "net/http", "github.com/miekg/dns"}, "the policy knows no protocol"},
		{"internal/calls", []string{grpc, "net/http", "github.com/miekg/dns"}, "calls of every protocol share it"},
		{"internal/httpcall", []string{grpc, "github.com/miekg/dns", module + "/internal/grpcattempt"}, "an HTTP call carries no other protocol"},
		{"internal/funccall", []string{grpc, "net/http", "github.com/miekg/dns"}, "a call of a function carries no protocol"},
		{"internal/audit", []string{module + "/internal/policy", module + "/internal/budget", module + "/internal/race", grpc, "net/http"}, "an audit knows latencies and the time of day"},
		{"internal/budget", []string{module + "/internal", module + "/observe", module + "/sketch"}, "a bucket knows nothing but requests and time"},
		{"observe", []string{module + "/internal/policy", module + "/internal/race", module + "/internal/ops", module + "/sketch", "golang.org", "google.golang.org", "net/http", "github.com/miekg/dns"},
			"observers of one protocol need not carry the others, nor the policy"},
		{"rangeread", []string{grpc, "net/http", "github.com/miekg/dns"}, "a Fetch knows the protocol"},
		{"internal/readonly", []string{module + "/internal", grpc, "net/http"}, "names and descriptors say what a method does, and no call"},
		{"internal/hedgebalancer", []string{module + "/internal/policy", module + "/internal/grpcattempt"}, "a balancer finds another backend, and does not decide about hedges"},
		{"internal/grpcattempt", []string{module + "/internal/policy"}, "attempts know no policy"},
		{"internal/serviceconfig", []string{module + "/internal/policy", module + "/internal/race", module + "/internal/grpcattempt"}, "it reads what a config says, and decides nothing"},
		{"internal/observers", []string{module + "/internal/policy", module + "/internal/race", module + "/internal/ops", module + "/sketch", "golang.org", "google.golang.org"}, "events pass through it, whoever raises them"},
		{"internal/connlimit", []string{module, "golang.org", "github.com/miekg/dns", "net/http"}, "who stays is a matter of clients and time, and no protocol's"},
		{"internal/ops", []string{grpc, "net/http", "github.com/miekg/dns"}, "every protocol is operated alike"},
		{"dnshedge", []string{grpc}, "a DNS user's program is 6.8 MiB, and 11.7 MiB with grpc"},
		{"dnshedge/forward", []string{grpc, module + "/dnshedge/recursor", module + "/dnshedge/dnssec", "github.com/prometheus"}, "it serves the answers of a Client, whatever the Client asks"},
		{"dnshedge/recursor", []string{grpc, module + "/debug"}, "it stands below a Client, and is told of by observe alone"},
		{"dnshedge/internal/lookup", []string{module + "/internal", module + "/dnshedge/internal/transport", "net/http", grpc}, "a lookup knows no transport"},
		{"dnshedge/internal/system", []string{module + "/internal", module + "/sketch", module + "/dnshedge/internal/transport", module + "/dnshedge/internal/group", "net/http", grpc}, "what the system says is addresses"},
		{"dnshedge/internal/group", []string{module + "/dnshedge/internal/system", module + "/dnshedge/internal/lookup", grpc}, "who asks servers need not know who named them, nor for whom"},
		{"dnshedge/names", []string{grpc}, "it stands on dnshedge, and an HTTP user does not carry grpc"},
		{"dnshedge/internal/wire", []string{module + "/internal", module + "/sketch", module + "/dnshedge/internal/transport", "net/http", grpc}, "messages know no sockets"},
		{"dnshedge/internal/validate", []string{module, "net/http", grpc}, "what is signed is a matter of records and the date alone"},
		{"dnshedge/internal/chain", []string{module + "/dnshedge/recursor", module + "/dnshedge/dnssec", module + "/dnshedge/internal/transport", "net/http", grpc}, "who follows a chain of trust has no servers, and others ask them"},
		{"dnshedge/dnssec", []string{grpc, module + "/dnshedge/recursor", module + "/dnshedge/internal/transport", module + "/dnshedge/internal/group", "net/http"}, "a Validator stands around whoever asks"},
		{"dnshedge/internal/special", []string{module + "/internal", module + "/sketch", module + "/dnshedge/internal/transport", "net/http", grpc}, "names know no sockets"},
		{"dnshedge/internal/transport", []string{module + "/internal/policy", module + "/internal/race", module + "/internal/ops", module + "/internal/observers", module + "/sketch", grpc},
			"transports know no policy and no cache"},
		{"internal/semaphore", []string{module, "golang.org", "github.com", "google.golang.org"}, "places are for whoever waits for one"},
		{"internal/upload", []string{module, "golang.org", "google.golang.org"}, "a body is read ahead whoever asks for it"},
		{"hedgetest", []string{grpc, "github.com/miekg/dns", "github.com/stretchr", module + "/internal/doubles"}, "who tests HTTP carries neither gRPC nor the tools of other tests"},
		{".", []string{"github.com/miekg/dns", module + "/dnshedge", module + "/debug", module + "/rangeread", module + "/steering"},
			"DNS, pages, ranges and files are not for every user to carry"},
	} {
		t.Run(rule.from, func(t *testing.T) {
			t.Parallel()
			for _, dep := range list(t, "-deps", "-f", "{{.ImportPath}}", "./"+rule.from) {
				if dep == module+"/"+rule.from {
					continue
				}
				assert.False(t, dep == module && rule.from != ".", "%s imports the root: %s", rule.from, rule.reason)
				assert.False(t, dep == module+"/dnshedge" && !strings.HasSuffix(rule.from, "names") && rule.from != "dnshedge/forward" && rule.from != ".", "%s imports dnshedge: %s", rule.from, rule.reason)
				for _, never := range rule.never {
					assert.False(t, dep == never || strings.HasPrefix(dep, never+"/"), "%s imports %s: %s", rule.from, dep, rule.reason)
				}
			}
		})
	}
}

// TestQUICUsesExportedAPI keeps module dnshedge/quic independent of the version of the root.
func TestQUICUsesExportedAPI(t *testing.T) {
	imports := list(t, "-f", `{{join .Imports "\n"}}`, "./dnshedge/quic")
	require.Contains(t, imports, module+"/dnshedge")
	for _, path := range imports {
		assert.NotContains(t, path, module+"/internal")
		assert.NotContains(t, path, module+"/dnshedge/internal")
	}
}

// TestThePageCarriesTheRootAlone: what it shows of DNS clients, recursors and stores of ranges is in package observe.
func TestThePageCarriesTheRootAlone(t *testing.T) {
	deps := list(t, "-deps", "./debug")
	require.Contains(t, deps, module)
	for _, dep := range deps {
		assert.NotRegexp(t, `^(`+module+`/(dnshedge|rangeread)|github\.com/miekg/dns)(/|$)`, dep)
	}
}

// TestOnlyTheInterceptorsKnowGRPC keeps grpc, and the packages that are about it, out of the root's other files.
func TestOnlyTheInterceptorsKnowGRPC(t *testing.T) {
	about := regexp.MustCompile(`"(google\.golang\.org/|` + module + `/internal/(conns|hedgebalancer|grpcattempt|grpccall|readonly|serviceconfig)")`)
	for _, file := range list(t, "-f", `{{join .GoFiles "\n"}}`, ".") {
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, strings.HasPrefix(file, "interceptor"), about.Match(src), file)
	}
}

// TestGRPCIsLeftOutByATag holds what the package says of hedge_nogrpc: it leaves out the files of interceptors, of which
// no other file knows, and nothing else, and what is left needs neither grpc nor genproto.
func TestGRPCIsLeftOutByATag(t *testing.T) {
	packages := []string{".", "./debug", "./test/..."}
	ofAll := "{{range .%s}}{{$.ImportPath}}/{{.}}\n{{end}}"
	var out []string
	for _, kind := range []string{"GoFiles", "TestGoFiles", "XTestGoFiles"} {
		for _, file := range list(t, append([]string{"-f", fmt.Sprintf(ofAll, kind)}, packages...)...) {
			if isAboutGRPC(strings.TrimPrefix(file, module+"/")) {
				out = append(out, file)
			}
		}
	}
	require.Greater(t, len(out), 10)
	tag := []string{"-tags", "hedge_nogrpc"}
	assert.ElementsMatch(t, out, list(t, append(append(tag, "-f", fmt.Sprintf(ofAll, "IgnoredGoFiles")), packages...)...))

	for _, dep := range list(t, append(append(tag, "-deps", "-test"), packages...)...) {
		assert.NotRegexp(t, `^google\.golang\.org/(grpc|genproto)(/|$)`, dep)
	}
	build, err := exec.Command("go", append(append([]string{"build"}, tag...), packages...)...).CombinedOutput()
	require.NoError(t, err, "%s", build)
}

// isAboutGRPC reports whether a file is left out by hedge_nogrpc. Of package repo these are the comparisons with all names and with the
// words of gRPC methods.
func isAboutGRPC(file string) bool {
	switch file {
	case "test/grpc/doc.go":
		return false // a package has a file
	case "test/repo/api_test.go", "test/repo/words_test.go":
		return true
	}
	return strings.HasPrefix(path.Base(file), "interceptor") || path.Dir(file) == "test/grpc"
}

// list returns the words that go list prints.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	return strings.Fields(output(t, ".", nil, "go", append([]string{"list"}, args...)...))
}

// TestOnlyTestsOfInterceptorsKnowGRPC keeps grpc out of the other tests of the root, so that they compile without gRPC. What
// grpc/interop and some balancers bring, xds and oauth2, is for module integration: else it is in this module's go.mod.
func TestOnlyTestsOfInterceptorsKnowGRPC(t *testing.T) {
	ofAll := `{{range .%s}}{{$.ImportPath}}/{{.}}{{"\n"}}{{end}}`
	files := list(t, "-f", fmt.Sprintf(ofAll+ofAll+ofAll, "GoFiles", "TestGoFiles", "XTestGoFiles"), "./test/...")
	files = append(files, list(t, "-f", fmt.Sprintf(ofAll+ofAll, "TestGoFiles", "XTestGoFiles"), ".")...)
	require.Contains(t, files, module+"/test/repo/imports_test.go")
	for _, name := range files {
		name = strings.TrimPrefix(name, module+"/")
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			grpc := strings.HasPrefix(path, "google.golang.org/") || path == module+"/internal/grpctest"
			assert.False(t, grpc && !isAboutGRPC(name), "%s imports %s", name, path)
		}
	}

	for _, dep := range list(t, "-deps", "-test", "./...") {
		heavy := dep == "google.golang.org/grpc/interop" || strings.HasPrefix(dep, "google.golang.org/grpc/xds") ||
			strings.HasPrefix(dep, "github.com/cncf/xds/") || strings.HasPrefix(dep, "golang.org/x/oauth2")
		assert.False(t, heavy, "a test imports %s", dep)
	}
}
