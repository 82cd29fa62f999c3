package reclab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

var contenders = []lab.Contender[environment, *resolver]{
	{Name: "hedge", Start: newLibraryStarter(recursor.Hedge{})},
	{Name: "hedge-off", Start: newLibraryStarter(recursor.Hedge{Off: true})},
	{Name: "hedge-novalidate", Start: newLibraryStarter(recursor.Hedge{})},
	{Name: "unbound", Start: newProgramStarter(configureUnbound("  discard-timeout: 0\n" + unboundIterator))},
	{Name: "unbound-stock", Start: newProgramStarter(configureUnbound(unboundIterator))},
	{Name: "unbound-validate", Start: newProgramStarter(configureUnbound("  discard-timeout: 0\n" + unboundValidator))},
	{Name: "named", Start: newProgramStarter(configureNamed("dnssec-validation no;", false))},
	{Name: "named-validate", Start: newProgramStarter(configureNamed("dnssec-validation yes;", true))},
	{Name: "pdns", Start: newProgramStarter(configurePowerDNS)},
	{Name: "kresd", Start: newProgramStarter(configureKnot)},
}

// Contenders lists the names of all contenders.
var Contenders = lab.NamesOf(contenders)

var (
	onlyUnsigned = []string{"unbound-stock", "pdns", "kresd"}                  // compared only where nothing is signed
	onlySigned   = append([]string{"hedge-novalidate"}, validatingPrograms...) // compared only where zones are signed
)

// ContendersOf returns the names of the contenders that are compared in the scenario with the given name.
func ContendersOf(scenario string) []string {
	excluded := onlySigned
	if IsSigned(scenario) {
		excluded = onlyUnsigned
	}
	return slices.DeleteFunc(slices.Clone(Contenders), func(name string) bool { return slices.Contains(excluded, name) })
}

// The modules of unbound.
const (
	unboundIterator  = "  module-config: \"iterator\"\n"
	unboundValidator = "  module-config: \"validator iterator\"\n  trust-anchor-signaling: no\n  trust-anchor-file: \"anchor\"\n"
)

// configureUnbound returns a function that configures the resolver unbound. settings has further lines of the
// configuration. By default unbound drops answers after 1.9 s.
func configureUnbound(settings string) configureFunc {
	return func(dir string) (*exec.Cmd, error) {
		return dnsserver.UnboundCommand(dir, `  port: 5353
  do-ip6: no
  outgoing-range: 4096
  num-queries-per-thread: 2048
  root-hints: "`+filepath.Join(dir, "hints")+`"
`+settings, "")
	}
}

// configureNamed returns a function that configures the resolver BIND, the program "named". validation is a line of its
// configuration. hasAnchor says whether BIND gets the key of the root.
func configureNamed(validation string, hasAnchor bool) configureFunc {
	return func(dir string) (*exec.Cmd, error) {
		anchors := ""
		if hasAnchor {
			text, err := os.ReadFile(filepath.Join(dir, "anchor"))
			f := strings.Fields(string(text)) // owner, TTL, class, type, and the DS record
			if err != nil || len(f) < 8 {
				return nil, fmt.Errorf("%q is no anchor: %w", text, err)
			}
			anchors = fmt.Sprintf("trust-anchors { . static-ds %s %s %s \"%s\"; };", f[4], f[5], f[6], strings.Join(f[7:], ""))
		}
		return dnsserver.ConfiguredCommand(dir, `options {
  directory "`+dir+`";
  listen-on port 5353 { 127.0.0.1; };
  listen-on-v6 { none; };
  allow-query { any; };
  recursion yes;
  `+validation+`
  empty-zones-enable no;
  pid-file none;
  session-keyfile none;
};
`+anchors+`
controls {};
zone "." { type hint; file "hints"; };
`, "named", "-4", "-g", "-n", "1", "-c")
	}
}

// configurePowerDNS writes the configuration of the program PowerDNS Recursor to dir, and returns the command that runs
// it. It is a configureFunc.
func configurePowerDNS(dir string) (*exec.Cmd, error) {
	path, err := exec.LookPath("pdns_recursor")
	if err != nil {
		return nil, err
	}
	return exec.Command(path, "--config-dir="+dir), os.WriteFile(filepath.Join(dir, "recursor.conf"), []byte(`local-address=127.0.0.1
local-port=5353
allow-from=127.0.0.0/8
hint-file=`+filepath.Join(dir, "hints")+`
dont-query=
dnssec=off
threads=1
daemon=no
disable-syslog=yes
write-pid=no
socket-dir=`+dir+`
security-poll-suffix=
`), 0o644)
}

// configureKnot writes the configuration of the program Knot Resolver to dir, and returns the command that runs it. It
// unloads modules whose queries the simulated internet cannot answer.
func configureKnot(dir string) (*exec.Cmd, error) {
	cmd, err := dnsserver.ConfiguredCommand(dir, `net.listen('127.0.0.1', 5353, { kind = 'dns' })
net.ipv6 = false
option('ALLOW_LOCAL', true)
trust_anchors.remove('.')
modules = { 'hints' }
modules.unload('ta_update') modules.unload('ta_signal_query') modules.unload('priming') modules.unload('detect_time_skew')
hints.root_file('`+filepath.Join(dir, "hints")+`')
cache.open(100*MB, 'lmdb://`+dir+`')
`, "kresd", "-n", "-c")
	if err == nil {
		cmd.Args = append(cmd.Args, dir)
	}
	return cmd, err
}
