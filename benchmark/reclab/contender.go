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
	{Name: "unbound", Start: newPeerStarter(configureUnbound(unboundIteratorModule))},
	{Name: "unbound-validate", Start: newPeerStarter(configureUnbound(unboundValidatorModule))},
	{Name: "named", Start: newPeerStarter(configureNamed("dnssec-validation no;", false))},
	{Name: "named-validate", Start: newPeerStarter(configureNamed("dnssec-validation yes;", true))},
	{Name: "pdns", Start: newPeerStarter(func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
		return peers.PowerDNSCommand(dir, "--local-port=5353", "--hint-file="+filepath.Join(dir, "hints"))
	})},
	{Name: "kresd", Start: newPeerStarter(func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
		return peers.KnotCommand(dir, 5353, "modules = { 'hints' }\nhints.root_file('"+filepath.Join(dir, "hints")+"')\n")
	})},
	{Name: "sdns", Start: newPeerStarter(configureSDNS)},
	{Name: "hickory", Start: newPeerStarter(func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
		hints := filepath.Join(dir, "hints") // without allow_server, Hickory does not query reserved networks, which the servers have
		return peers.HickoryCommand(dir, 5353, fmt.Sprintf("type = \"recursor\"\nroots = %q\nallow_server = [%q]\n", hints, ServerNetwork))
	})},
}

// Contenders lists the names of all contenders.
var Contenders = lab.NamesOf(contenders)

var (
	unsignedOnlyContenders = []string{"pdns", "kresd", "sdns", "hickory"}                // compared only where nothing is signed
	signedOnlyContenders   = append([]string{"hedge-novalidate"}, validatingPrograms...) // compared only where zones are signed
)

// ContendersOf returns the names of the resolvers that are compared in a scenario.
func ContendersOf(scenario string) []string {
	excluded := signedOnlyContenders
	if HasSignedZones(scenario) {
		excluded = unsignedOnlyContenders
	}
	return slices.DeleteFunc(slices.Clone(Contenders), func(name string) bool { return slices.Contains(excluded, name) })
}

// The modules of unbound.
const (
	unboundIteratorModule  = "  module-config: \"iterator\"\n"
	unboundValidatorModule = "  module-config: \"validator iterator\"\n  trust-anchor-signaling: no\n  trust-anchor-file: \"anchor\"\n"
)

// configureUnbound returns a configureFunc for unbound, set to send each answer, however late. By default, unbound
// drops old queries. module is the configuration line module-config, by which unbound validates or not.
func configureUnbound(module string) configureFunc {
	return func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
		return peers.UnboundCommand(dir, `  port: 5353
  do-ip6: no
  outgoing-range: 4096
  num-queries-per-thread: 2048
  discard-timeout: 0
  root-hints: "`+filepath.Join(dir, "hints")+`"
`+module, "")
	}
}

// configureNamed returns a configureFunc for BIND. validation is the configuration line that turns validation on or
// off. If hasAnchor is set, BIND gets its trust anchor, the DS record of the root's key.
func configureNamed(validation string, hasAnchor bool) configureFunc {
	return func(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
		anchors := ""
		if hasAnchor {
			text, err := os.ReadFile(filepath.Join(dir, "anchor"))
			f := strings.Fields(string(text)) // owner, TTL, class, type, and the DS record
			if err != nil || len(f) < 8 {
				return nil, fmt.Errorf("%q is no anchor: %w", text, err)
			}
			anchors = fmt.Sprintf("trust-anchors { . static-ds %s %s %s \"%s\"; };", f[4], f[5], f[6], strings.Join(f[7:], ""))
		}
		return peers.NamedCommand(dir, 5353, validation, anchors+"\nzone \".\" { type hint; file \"hints\"; };")
	}
}

func configureSDNS(peers dnsserver.PeerCommands, dir string) (*exec.Cmd, error) {
	hints, err := os.ReadFile(filepath.Join(dir, "hints"))
	if err != nil {
		return nil, err
	}
	var servers []string
	for line := range strings.Lines(string(hints)) {
		if f := strings.Fields(line); f[2] == "A" {
			servers = append(servers, fmt.Sprintf("%q", f[3]+":53"))
		}
	}
	return peers.SDNSCommand(dir, 5353, "rootservers = ["+strings.Join(servers, ", ")+"]")
}
