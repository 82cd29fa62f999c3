package dnsserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/internal/netsim"
)

// MaxTCPConns is the limit of the TCP connections of clients to a forwarder, and tcpIdleSeconds the time that such a
// connection may be idle, where the program has these settings. A process may often have 20,000 descriptors.
const (
	MaxTCPConns    = 19_900
	tcpIdleSeconds = 60
)

// A ForwarderConfig configures a caching DNS forwarder that listens at ListenAddress.
type ForwarderConfig struct {
	Peers           Peers
	Dir             string   // for its files; Start makes it
	Upstreams       []string // IP addresses of the servers that it queries
	Transport       string   // to these servers: udp, tls or https
	ServerName      string   // in the certificate of the servers
	CertificateFile string   // has the certificate of the servers, in PEM
	ServesTLS       bool     // it serves DNS over TLS only, with the certificate and the key in CertificateFile
}

// supportedTransports lists the transports over which each forwarder can query servers with a private certificate.
var supportedTransports = map[string][]string{
	"forwarder": {"udp", "tls", "https"}, "unbound": {"udp", "tls"}, "named": {"udp", "tls"}, "pdns": {"udp", "tls"}, "kresd": {"udp", "tls"},
	"dnsdist": {"udp", "tls", "https"}, "sdns": {"udp"}, "hickory": {"udp"},
}

// SupportedTransports returns the transports over which the forwarder name can query servers: udp, tls or https.
func SupportedTransports(name string) []string { return supportedTransports[name] }

// Command returns the command that runs a forwarder: a peer, "forwarder" for this library, or BareGo. The error is
// exec.ErrNotFound if the program is not installed.
func (f ForwarderConfig) Command(name string) (*exec.Cmd, error) {
	if f.ServesTLS && name != "forwarder" && name != "unbound" {
		return nil, fmt.Errorf("no configuration of %s for DNS over TLS", name)
	}
	switch name {
	case "forwarder":
		return f.helperCommand()
	case BareGo:
		cmd, err := f.helperCommand()
		if err == nil {
			cmd.Env = append(cmd.Env, bareEnv+"=1")
		}
		return cmd, err
	case "unbound":
		return f.unboundCommand()
	case "named":
		return f.namedCommand()
	case "pdns":
		return f.Peers.PowerDNSCommand(f.Dir, "--local-port=53", fmt.Sprint("--max-tcp-clients=", MaxTCPConns), fmt.Sprint("--client-tcp-timeout=", tcpIdleSeconds),
			"--forward-zones-recurse=.="+f.formatUpstreams("%s:%d", ";"))
	case "kresd":
		return f.knotCommand()
	case "dnsdist":
		return f.dnsdistCommand()
	case "sdns":
		return f.Peers.SDNSCommand(f.Dir, 53, "forwarderservers = ["+f.formatUpstreams(`"%s:%d"`, ", ")+"]")
	case "hickory":
		return f.Peers.HickoryCommand(f.Dir, 53, "type = \"forward\"\n"+
			f.formatUpstreams("[[zones.stores.name_servers]]\nip = \"%s\"\nconnections = [{ port = %d, protocol = { type = \"udp\" } }]\ntrust_negative_responses = true\n", ""))
	}
	return nil, fmt.Errorf("no forwarder %q", name)
}

// Start runs a forwarder on a host, as the function of that name does, and makes the directory Dir for its files.
func (f ForwarderConfig) Start(host *netsim.Host, name string, timeout time.Duration) (_ *Client, _ *os.Process, stop func(), err error) {
	stop = func() {}
	if err := os.Mkdir(f.Dir, 0o755); err != nil {
		return nil, nil, stop, err
	}
	cmd, err := f.Command(name)
	if err != nil {
		return nil, nil, stop, err
	}
	c, stop, err := Start(host, cmd, timeout)
	return c, cmd.Process, stop, err
}

// formatUpstreams returns the upstream servers as text. format formats the address and the port of each.
func (f ForwarderConfig) formatUpstreams(format, separator string) string {
	port := map[string]int{"udp": 53, "tls": 853, "https": 443}[f.Transport]
	var all []string
	for _, address := range f.Upstreams {
		all = append(all, fmt.Sprintf(format, address, port))
	}
	return strings.Join(all, separator)
}

// UnboundForwardZone returns the section forward-zone of unbound's configuration for the servers at addresses.
func UnboundForwardZone(addresses []string) string {
	return "forward-zone:\n  name: \".\"\n  forward-addr: " + strings.Join(addresses, "\n  forward-addr: ") + "\n"
}

func (f ForwarderConfig) unboundCommand() (*exec.Cmd, error) {
	server := fmt.Sprintf("  module-config: \"iterator\"\n  incoming-num-tcp: %d\n  tcp-idle-timeout: %d000\n", MaxTCPConns, tcpIdleSeconds)
	if f.ServesTLS {
		server += fmt.Sprintf("  tls-port: 53\n  tls-service-pem: %[1]q\n  tls-service-key: %[1]q\n", f.CertificateFile)
	}
	if f.Transport == "udp" {
		return f.Peers.UnboundCommand(f.Dir, server, UnboundForwardZone(f.Upstreams))
	}
	var addresses []string
	for _, address := range f.Upstreams {
		addresses = append(addresses, address+"@853#"+f.ServerName)
	}
	return f.Peers.UnboundCommand(f.Dir, server+"  tls-cert-bundle: \""+f.CertificateFile+"\"\n", UnboundForwardZone(addresses)+"  forward-tls-upstream: yes\n")
}

func (f ForwarderConfig) namedCommand() (*exec.Cmd, error) {
	server, upstreams := "", f.formatUpstreams("%s port %d;", " ")
	if f.Transport == "tls" {
		server, upstreams = fmt.Sprintf("tls upstream { ca-file %q; remote-hostname %q; };\n", f.CertificateFile, f.ServerName), f.formatUpstreams("%s port %d tls upstream;", " ")
	}
	return f.Peers.CommandWithConfig(f.Dir, fmt.Sprintf(`%soptions {
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
`, server, f.Dir, MaxTCPConns, tcpIdleSeconds/10, upstreams), "named", "-4", "-g", "-n", "1", "-c")
}

func (f ForwarderConfig) knotCommand() (*exec.Cmd, error) {
	servers := "FORWARD({" + f.formatUpstreams("'%s@%d'", ", ") + "})"
	if f.Transport == "tls" {
		servers = "TLS_FORWARD({" + f.formatUpstreams(fmt.Sprintf("{'%%s@%%d', hostname='%s', ca_file='%s'}", f.ServerName, f.CertificateFile), ", ") + "})"
	}
	return f.Peers.KnotCommand(f.Dir, 53, fmt.Sprintf("net.tcp_in_idle(%d000)\n", tcpIdleSeconds)+"policy.add(policy.all(policy."+servers+"))\n")
}

// dnsdistCommand returns the command that runs dnsdist, which does not retransmit queries.
func (f ForwarderConfig) dnsdistCommand() (*exec.Cmd, error) {
	secure := ""
	if f.Transport != "udp" {
		secure = fmt.Sprintf(", tls='openssl', subjectName='%s', caStore='%s'", f.ServerName, f.CertificateFile)
	}
	if f.Transport == "https" {
		secure += ", dohPath='/dns-query'"
	}
	text := fmt.Sprintf("setLocal('127.0.0.1:53')\nsetTCPRecvTimeout(%d)\ngetPool(''):setCache(newPacketCache(10000))\n", tcpIdleSeconds) + f.formatUpstreams("newServer({address='%s:%d'"+secure+"}):setUp()\n", "")
	return f.Peers.CommandWithConfig(f.Dir, text, "dnsdist", "--supervised", "--disable-syslog", "-C")
}

// Environment variables of a helper process: the servers of this library's forwarder, separated by spaces; the
// certificate file of a forwarder that serves DNS over TLS; and a variable that selects the server of BareGo.
const (
	upstreamsEnv   = "DNSSERVER_UPSTREAMS"
	certificateEnv = "DNSSERVER_CERTIFICATE"
	bareEnv        = "DNSSERVER_BARE"
)

// helperCommand returns a command that runs this program again as this library's forwarder, with one thread.
func (f ForwarderConfig) helperCommand() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	upstream := "udp://%s:%d"
	if f.Transport != "udp" {
		upstream = f.Transport + "://%s:%d#" + f.ServerName
		cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+f.CertificateFile)
	}
	cmd.Env = append(cmd.Env, upstreamsEnv+"="+f.formatUpstreams(upstream, " "))
	if f.ServesTLS {
		cmd.Env = append(cmd.Env, certificateEnv+"="+f.CertificateFile)
	}
	return cmd, nil
}

// ServeForwarder runs the DNS forwarder of this library if ForwarderConfig.Command has described this process as a helper,
// and does not return then. In any other process it returns at once. A program that starts forwarders must call
// ServeForwarder first.
func ServeForwarder() {
	upstreams := strings.Fields(os.Getenv(upstreamsEnv))
	if len(upstreams) == 0 {
		return
	}
	serve := func() error { return serveForwarder(upstreams) }
	if os.Getenv(bareEnv) != "" {
		serve = serveBareGo
	}
	fmt.Fprintln(os.Stderr, serve())
	os.Exit(1)
}

// serveForwarder forwards DNS queries to upstreams, in the format of dnshedge.ParseUpstream.
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
	limits.Conns, limits.ConnsPerClient = MaxTCPConns, MaxTCPConns
	conf := forward.Config{Client: client, Listen: []string{ListenAddress}, Limits: &limits}
	if file := os.Getenv(certificateEnv); file != "" {
		getCertificate, err := forward.CertificateFiles(file, file)
		if err != nil {
			return err
		}
		conf.TLSConfig, conf.ListenTLS, conf.Listen = &tls.Config{GetCertificate: getCertificate}, conf.Listen, nil
	}
	server, err := forward.New(conf)
	if err != nil {
		return err
	}
	return server.Serve(context.Background())
}
