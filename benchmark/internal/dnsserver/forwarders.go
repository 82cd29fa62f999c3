package dnsserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/helper"
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
	Peers           PeerCommands
	Dir             string   // for its files; Start makes it
	Upstreams       []string // IP addresses of the servers that it queries
	Transport       string   // to these servers: udp, tls or https
	ServerName      string   // in the certificate of the servers
	CertificateFile string   // has the certificate of the servers, in PEM
	ServesTLS       bool     // it serves DNS over TLS only, with the certificate and the key in CertificateFile
	ClosesConns     bool     // BareGo closes a connection after its first response
}

// SupportedTransports lists the transports over which each forwarder can query servers with a private certificate.
var SupportedTransports = map[string][]string{
	"forwarder": {"udp", "tls", "https"}, "unbound": {"udp", "tls"}, "named": {"udp", "tls"}, "pdns": {"udp", "tls"}, "kresd": {"udp", "tls"},
	"dnsdist": {"udp", "tls", "https"}, "sdns": {"udp"}, "hickory": {"udp"},
}

// Command returns the command that runs the named forwarder: a DNS server of another project, "forwarder" for this
// library, or BareGo for a minimal Go server. The error is exec.ErrNotFound if the program is not installed.
func (f ForwarderConfig) Command(name string) (*exec.Cmd, error) {
	if f.ServesTLS && name != "forwarder" && name != "unbound" && name != BareGo {
		return nil, fmt.Errorf("no configuration of %s for DNS over TLS", name)
	}
	switch name {
	case "forwarder":
		return f.helperCommand(forwarderHelper)
	case BareGo:
		return f.helperCommand(bareGoHelper)
	case "unbound":
		return f.UnboundCommand("")
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

// Start makes the directory Dir and runs the named forwarder on a host. When that accepts TCP connections, Start returns its
// process and a client that waits timeout for an answer. stop ends the process, and must be called also after an error.
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

// formatUpstreams returns the list of upstream servers for a configuration. format is for the address and port of each.
func (f ForwarderConfig) formatUpstreams(format, separator string) string {
	port := map[string]int{"udp": 53, "tls": 853, "https": 443}[f.Transport]
	var all []string
	for _, address := range f.Upstreams {
		all = append(all, fmt.Sprintf(format, address, port))
	}
	return strings.Join(all, separator)
}

// UnboundCommand returns the command that runs unbound as a forwarder. settings are further lines of the section server.
func (f ForwarderConfig) UnboundCommand(settings string) (*exec.Cmd, error) {
	server := fmt.Sprintf("  module-config: \"iterator\"\n  incoming-num-tcp: %d\n  tcp-idle-timeout: %d000\n", MaxTCPConns, tcpIdleSeconds) + settings
	if f.ServesTLS {
		server += fmt.Sprintf("  tls-port: 53\n  tls-service-pem: %[1]q\n  tls-service-key: %[1]q\n", f.CertificateFile)
	}
	upstream, zone := "  forward-addr: %s@%d\n", "forward-zone:\n  name: \".\"\n"
	if f.Transport == "tls" {
		server += fmt.Sprintf("  tls-cert-bundle: %q\n", f.CertificateFile)
		upstream, zone = "  forward-addr: %s@%d#"+f.ServerName+"\n", zone+"  forward-tls-upstream: yes\n"
	}
	return f.Peers.UnboundCommand(f.Dir, server, zone+f.formatUpstreams(upstream, ""))
}

func (f ForwarderConfig) namedCommand() (*exec.Cmd, error) {
	sections, upstreams := "", f.formatUpstreams("%s port %d;", " ")
	if f.Transport == "tls" {
		sections, upstreams = fmt.Sprintf("tls upstream { ca-file %q; remote-hostname %q; };", f.CertificateFile, f.ServerName), f.formatUpstreams("%s port %d tls upstream;", " ")
	}
	return f.Peers.NamedCommand(f.Dir, 53, fmt.Sprintf(`dnssec-validation no;
  tcp-clients %d;
  tcp-listen-queue 128;
  tcp-idle-timeout %d00;
  forward only;
  forwarders { %s };`, MaxTCPConns, tcpIdleSeconds/10, upstreams), sections)
}

func (f ForwarderConfig) knotCommand() (*exec.Cmd, error) {
	servers := "FORWARD({" + f.formatUpstreams("'%s@%d'", ", ") + "})"
	if f.Transport == "tls" {
		servers = "TLS_FORWARD({" + f.formatUpstreams(fmt.Sprintf("{'%%s@%%d', hostname='%s', ca_file='%s'}", f.ServerName, f.CertificateFile), ", ") + "})"
	}
	return f.Peers.KnotCommand(f.Dir, 53, fmt.Sprintf("net.tcp_in_idle(%d000)\n", tcpIdleSeconds)+"policy.add(policy.all(policy."+servers+"))\n")
}

// dnsdistCommand returns the command that runs dnsdist. dnsdist itself does not retransmit queries.
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

// The forwarderSettings configure a forwarder in a helper process: this library's, or the minimal Go server BareGo.
type forwarderSettings struct {
	Upstreams       []string // in the format of dnshedge.ParseUpstream
	CertificateFile string   // of a forwarder that serves DNS over TLS; empty: it does not
	ClosesConns     bool     // see ForwarderConfig
}

// The functions that run in helper processes: this library's forwarder, and the server of BareGo.
var (
	forwarderHelper = helper.New("forwarder", forwarderSettings.serve)
	bareGoHelper    = helper.New(BareGo, serveBareGo)
)

// helperCommand returns the command that runs server, a forwarder, in a helper process with one thread.
func (f ForwarderConfig) helperCommand(server helper.Func[forwarderSettings]) (*exec.Cmd, error) {
	upstream, env := "udp://%s:%d", []string{"GOMAXPROCS=1"}
	if f.Transport != "udp" {
		upstream, env = f.Transport+"://%s:%d#"+f.ServerName, append(env, "SSL_CERT_FILE="+f.CertificateFile)
	}
	settings := forwarderSettings{Upstreams: strings.Fields(f.formatUpstreams(upstream, " ")), ClosesConns: f.ClosesConns}
	if f.ServesTLS {
		settings.CertificateFile = f.CertificateFile
	}
	return server.Command(context.Background(), settings, env...)
}

// serve runs this library's forwarder until an error occurs.
func (s forwarderSettings) serve() error {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	for _, text := range s.Upstreams {
		upstream, err := dnshedge.ParseUpstream(text)
		if err != nil {
			return err
		}
		client.Upstreams = append(client.Upstreams, upstream)
	}
	limits := forward.DefaultLimits()
	limits.Conns, limits.ConnsPerClient = MaxTCPConns, MaxTCPConns
	config, err := s.tlsConfig()
	if err != nil {
		return err
	}
	conf := forward.Config{Client: client, Listen: []string{ListenAddress}, Limits: &limits, TLSConfig: config}
	if config != nil {
		conf.ListenTLS, conf.Listen = conf.Listen, nil
	}
	server, err := forward.New(conf)
	if err != nil {
		return err
	}
	return server.Serve(context.Background())
}

// tlsConfig returns the configuration of a forwarder that serves DNS over TLS, or nil if it serves plain DNS.
func (s forwarderSettings) tlsConfig() (*tls.Config, error) {
	if s.CertificateFile == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(s.CertificateFile, s.CertificateFile)
	return &tls.Config{Certificates: []tls.Certificate{cert}}, err
}
