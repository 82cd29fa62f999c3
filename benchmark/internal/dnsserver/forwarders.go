package dnsserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
)

// Limits of the TCP connections of clients to forwarders, where the program has these settings.
const (
	maxConns    = 8192
	idleSeconds = 60
)

// A Forwarder is the configuration of a DNS forwarder with a cache, which listens at ListenAddress.
type Forwarder struct {
	Peers      Peers
	Dir        string   // for its files
	Upstreams  []string // IP addresses of the servers that it queries
	Transport  string   // to these servers: udp, tls or https
	ServerName string   // in the certificate of the servers
	RootsFile  string   // has the certificate of the servers, in PEM
}

// transportsOf lists the transports over which each forwarder can query servers with a private certificate.
var transportsOf = map[string][]string{
	"forwarder": {"udp", "tls", "https"}, "unbound": {"udp", "tls"}, "named": {"udp", "tls"}, "pdns": {"udp", "tls"}, "kresd": {"udp", "tls"},
	"dnsdist": {"udp", "tls", "https"}, "coredns": {"udp"}, "sdns": {"udp"}, "hickory": {"udp"},
}

// TransportsOf returns the transports over which the forwarder with the given name can query servers: udp, tls, https. The
// name is that of a peer, or forwarder for this library. It returns nil for other names.
func TransportsOf(name string) []string { return transportsOf[name] }

// Command returns the command for the forwarder with the given name: that of a peer, or forwarder for this library. The
// error is exec.ErrNotFound if the program is not installed.
func (f Forwarder) Command(name string) (*exec.Cmd, error) {
	switch name {
	case "forwarder":
		return f.helperCommand()
	case "unbound":
		return f.unboundCommand()
	case "named":
		return f.namedCommand()
	case "pdns":
		return f.Peers.PowerDNSCommand(f.Dir, "--local-port=53", fmt.Sprint("--max-tcp-clients=", maxConns), fmt.Sprint("--client-tcp-timeout=", idleSeconds),
			"--forward-zones-recurse=.="+f.joinUpstreams("%s:%d", ";"))
	case "kresd":
		return f.knotCommand()
	case "dnsdist":
		return f.dnsdistCommand()
	case "coredns":
		text := fmt.Sprintf(".:53 {\n  bind 127.0.0.1\n  cache\n  forward . %s\n}\n", f.joinUpstreams("%s:%d", " "))
		return f.Peers.ConfiguredCommand(f.Dir, text, "coredns", "-quiet", "-conf")
	case "sdns":
		return f.Peers.SDNSCommand(f.Dir, 53, "forwarderservers = ["+f.joinUpstreams(`"%s:%d"`, ", ")+"]")
	case "hickory":
		return f.Peers.HickoryCommand(f.Dir, 53, "type = \"forward\"\n"+
			f.joinUpstreams("[[zones.stores.name_servers]]\nip = \"%s\"\nconnections = [{ port = %d, protocol = { type = \"udp\" } }]\ntrust_negative_responses = true\n", ""))
	}
	return nil, fmt.Errorf("no forwarder %q", name)
}

// joinUpstreams formats the address and the port of each upstream server, and joins the results.
func (f Forwarder) joinUpstreams(format, separator string) string {
	port := map[string]int{"udp": 53, "tls": 853, "https": 443}[f.Transport]
	var all []string
	for _, address := range f.Upstreams {
		all = append(all, fmt.Sprintf(format, address, port))
	}
	return strings.Join(all, separator)
}

// UnboundForwards returns the section of unbound's configuration that forwards all queries over UDP to the servers with
// the given addresses.
func UnboundForwards(addresses []string) string {
	return "forward-zone:\n  name: \".\"\n  forward-addr: " + strings.Join(addresses, "\n  forward-addr: ") + "\n"
}

func (f Forwarder) unboundCommand() (*exec.Cmd, error) {
	server := fmt.Sprintf("  module-config: \"iterator\"\n  incoming-num-tcp: %d\n", maxConns)
	if f.Transport == "udp" {
		return f.Peers.UnboundCommand(f.Dir, server, UnboundForwards(f.Upstreams))
	}
	var addresses []string
	for _, address := range f.Upstreams {
		addresses = append(addresses, address+"@853#"+f.ServerName)
	}
	return f.Peers.UnboundCommand(f.Dir, server+"  tls-cert-bundle: \""+f.RootsFile+"\"\n", UnboundForwards(addresses)+"  forward-tls-upstream: yes\n")
}

func (f Forwarder) namedCommand() (*exec.Cmd, error) {
	server, upstreams := "", f.joinUpstreams("%s port %d;", " ")
	if f.Transport == "tls" {
		server, upstreams = fmt.Sprintf("tls upstream { ca-file %q; remote-hostname %q; };\n", f.RootsFile, f.ServerName), f.joinUpstreams("%s port %d tls upstream;", " ")
	}
	return f.Peers.ConfiguredCommand(f.Dir, fmt.Sprintf(`%soptions {
  directory %q;
  listen-on port 53 { 127.0.0.1; };
  listen-on-v6 { none; };
  recursion yes;
  dnssec-validation no;
  empty-zones-enable no;
  pid-file none;
  session-keyfile none;
  tcp-clients %d;
  tcp-listen-queue 128;
  tcp-idle-timeout %d00;
  forward only;
  forwarders { %s };
};
controls {};
`, server, f.Dir, maxConns, idleSeconds/10, upstreams), "named", "-4", "-g", "-n", "1", "-c")
}

func (f Forwarder) knotCommand() (*exec.Cmd, error) {
	servers := "FORWARD({" + f.joinUpstreams("'%s@%d'", ", ") + "})"
	if f.Transport == "tls" {
		servers = "TLS_FORWARD({" + f.joinUpstreams(fmt.Sprintf("{'%%s@%%d', hostname='%s', ca_file='%s'}", f.ServerName, f.RootsFile), ", ") + "})"
	}
	return f.Peers.KnotCommand(f.Dir, 53, fmt.Sprintf("net.tcp_in_idle(%d000)\n", idleSeconds)+"policy.add(policy.all(policy."+servers+"))\n")
}

// dnsdistCommand returns the command for dnsdist, which retransmits nothing.
func (f Forwarder) dnsdistCommand() (*exec.Cmd, error) {
	secure := ""
	if f.Transport != "udp" {
		secure = fmt.Sprintf(", tls='openssl', subjectName='%s', caStore='%s'", f.ServerName, f.RootsFile)
	}
	if f.Transport == "https" {
		secure += ", dohPath='/dns-query'"
	}
	text := fmt.Sprintf("setLocal('127.0.0.1:53')\nsetTCPRecvTimeout(%d)\ngetPool(''):setCache(newPacketCache(10000))\n", idleSeconds) + f.joinUpstreams("newServer({address='%s:%d'"+secure+"}):setUp()\n", "")
	return f.Peers.ConfiguredCommand(f.Dir, text, "dnsdist", "--supervised", "--disable-syslog", "-C")
}

// upstreamsEnv is the variable with the servers of this library's forwarder, separated by spaces.
const upstreamsEnv = "DNSSERVER_UPSTREAMS"

// helperCommand returns a command that runs this program again as a helper process, which is this library's forwarder with
// one thread.
func (f Forwarder) helperCommand() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	upstream := "udp://%s:%d"
	if f.Transport != "udp" {
		upstream = f.Transport + "://%s:%d#" + f.ServerName
		cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+f.RootsFile)
	}
	cmd.Env = append(cmd.Env, upstreamsEnv+"="+f.joinUpstreams(upstream, " "))
	return cmd, nil
}

// ServeForwarder runs this library's DNS forwarder in a helper process that Forwarder.Command describes, and does not
// return in it. In any other process it returns at once. A program that starts forwarders calls ServeForwarder first.
func ServeForwarder() {
	upstreams := strings.Fields(os.Getenv(upstreamsEnv))
	if len(upstreams) == 0 {
		return
	}
	fmt.Fprintln(os.Stderr, serveForwarder(upstreams))
	os.Exit(1)
}

// serveForwarder forwards queries to upstreams, which are texts for dnshedge.ParseUpstream, until an error occurs.
func serveForwarder(upstreams []string) error {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	for _, text := range upstreams {
		upstream, err := dnshedge.ParseUpstream(text)
		if err != nil {
			return err
		}
		client.Upstreams = append(client.Upstreams, upstream)
	}
	limits := forward.DefaultLimits()
	limits.Conns, limits.ConnsPerClient = maxConns, maxConns
	server, err := forward.New(forward.Config{Client: client, Listen: []string{ListenAddress}, Limits: &limits})
	if err != nil {
		return err
	}
	return server.Serve(context.Background())
}
