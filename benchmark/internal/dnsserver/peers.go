package dnsserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// peerPrograms lists the peers, which are DNS servers of other projects, and their programs.
var peerPrograms = []struct{ peer, program string }{
	{"unbound", "unbound"}, {"named", "named"}, {"pdns", "pdns_recursor"}, {"kresd", "kresd"}, {"dnsdist", "dnsdist"}, {"sdns", "sdns"}, {"hickory", "hickory-dns"},
}

// PeerNames returns the names of the DNS servers of other projects that the benchmark compares with.
func PeerNames() (names []string) {
	for _, p := range peerPrograms {
		names = append(names, p.peer)
	}
	return names
}

// PeerOf returns the name of the DNS server of another project that a contender runs: unbound for unbound-validate. It
// returns "" for contenders that run none.
func PeerOf(contender string) string {
	name, _, _ := strings.Cut(contender, "-")
	if slices.Contains(PeerNames(), name) {
		return name
	}
	return ""
}

// PeerCommands has the commands, split into words, of peers: DNS servers of other projects. Others are run from PATH.
type PeerCommands map[string][]string

// SetCommand sets the command that runs a peer, a DNS server of another project, from a text of the form peer=command.
func (p PeerCommands) SetCommand(text string) error {
	name, command, _ := strings.Cut(text, "=")
	words := strings.Fields(command)
	switch {
	case !slices.Contains(PeerNames(), name):
		return fmt.Errorf("no peer %q: want name=command, and a name of %s", name, strings.Join(PeerNames(), ", "))
	case len(words) == 0:
		return fmt.Errorf("no command for %s: want name=command", name)
	}
	p[name] = words
	return nil
}

// Command returns the command that runs peer, a DNS server of another project, or exec.ErrNotFound if it is not installed.
func (p PeerCommands) Command(peer string, args ...string) (*exec.Cmd, error) {
	command := p[peer]
	for _, known := range peerPrograms {
		if known.peer == peer && command == nil {
			command = []string{known.program}
		}
	}
	path, err := exec.LookPath(command[0])
	if errors.Is(err, fs.ErrNotExist) {
		err = &exec.Error{Name: command[0], Err: exec.ErrNotFound}
	}
	if err != nil {
		return nil, err
	}
	return exec.Command(path, slices.Concat(command[1:], args)...), nil
}

// CommandWithConfig writes text to a configuration file in dir. It returns the command that runs a peer, a DNS server of
// another project, with args and then the name of the file as arguments.
func (p PeerCommands) CommandWithConfig(dir, text, peer string, args ...string) (*exec.Cmd, error) {
	file := filepath.Join(dir, peer+".conf")
	cmd, err := p.Command(peer, append(args, file)...)
	if err != nil {
		return nil, err
	}
	return cmd, os.WriteFile(file, []byte(text), 0o644)
}

// UnboundCommand returns the command that runs unbound at 127.0.0.1, with its files in dir and one thread. server has
// further lines for the section server of the configuration, and sections has other sections.
func (p PeerCommands) UnboundCommand(dir, server, sections string) (*exec.Cmd, error) {
	return p.CommandWithConfig(dir, `server:
  interface: 127.0.0.1
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: "`+dir+`"
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  do-daemonize: no
  num-threads: 1
`+server+`remote-control:
  control-enable: no
`+sections, "unbound", "-d", "-c")
}

// NamedCommand returns the command that runs BIND at 127.0.0.1 and port, with its files in dir and one thread. options are
// lines for the section options of the configuration, and sections are other sections.
func (p PeerCommands) NamedCommand(dir string, port int, options, sections string) (*exec.Cmd, error) {
	return p.CommandWithConfig(dir, fmt.Sprintf(`options {
  directory %q;
  listen-on port %d { 127.0.0.1; };
  listen-on-v6 { none; };
  recursion yes;
  empty-zones-enable no;
  pid-file none;
  session-keyfile none;
  %s
};
controls {};
%s
`, dir, port, options, sections), "named", "-4", "-g", "-n", "1", "-c")
}

// PowerDNSCommand returns the command that runs PowerDNS Recursor with one thread and its files in dir. settings are
// further command-line arguments, because the format of a configuration file depends on the version.
func (p PeerCommands) PowerDNSCommand(dir string, settings ...string) (*exec.Cmd, error) {
	return p.Command("pdns", append([]string{
		"--config-dir=" + dir, "--socket-dir=" + dir, "--local-address=127.0.0.1", "--allow-from=127.0.0.0/8", "--dont-query=", "--dnssec=off",
		"--threads=1", "--daemon=no", "--disable-syslog=yes", "--write-pid=no", "--security-poll-suffix=",
	}, settings...)...)
}

// KnotCommand returns the command that runs Knot Resolver at 127.0.0.1 and port, with its files in dir. Modules that query
// servers on the internet are off. lua has further lines of the configuration.
func (p PeerCommands) KnotCommand(dir string, port int, lua string) (*exec.Cmd, error) {
	cmd, err := p.CommandWithConfig(dir, fmt.Sprintf(`net.listen('127.0.0.1', %d, { kind = 'dns' })
net.ipv6 = false
option('ALLOW_LOCAL', true)
trust_anchors.remove('.')
modules.unload('ta_update') modules.unload('ta_signal_query') modules.unload('priming') modules.unload('detect_time_skew')
cache.open(100*MB, 'lmdb://%s')
%s`, port, dir, lua), "kresd", "-n", "-c")
	if err == nil {
		cmd.Args = append(cmd.Args, dir)
	}
	return cmd, err
}

// SDNSCommand returns the command that runs sdns at 127.0.0.1 and port, with its files in dir. servers is the line of the
// configuration with the servers that sdns queries.
func (p PeerCommands) SDNSCommand(dir string, port int, servers string) (*exec.Cmd, error) {
	cmd, err := p.CommandWithConfig(dir, fmt.Sprintf(`version = "1.5.0"
directory = %q
bind = "127.0.0.1:%d"
%s
dnssec = "off"
api = ""
loglevel = "error"
nullroute = "0.0.0.0"
nullroutev6 = "::0"
accesslist = ["127.0.0.0/8"]
timeout = "2s"
querytimeout = "10s"
expire = 600
cachesize = 256000
maxdepth = 30
qname_min_level = 5
`, filepath.Join(dir, "db"), port, servers), "sdns", "-c")
	if err == nil {
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	}
	return cmd, err
}

// HickoryCommand returns the command that runs Hickory DNS at 127.0.0.1 and port, with its configuration in dir. store has
// the configuration lines that say how names are resolved: by a forwarder or by a recursor.
func (p PeerCommands) HickoryCommand(dir string, port int, store string) (*exec.Cmd, error) {
	return p.CommandWithConfig(dir, fmt.Sprintf(`listen_addrs_ipv4 = ["127.0.0.1"]
listen_port = %d
tcp_request_timeout = %d
user = "root"
group = "root"
[[zones]]
zone = "."
zone_type = "External"
[zones.stores]
%s`, port, tcpIdleSeconds, store), "hickory", "--workers", "1", "-q", "-c")
}
