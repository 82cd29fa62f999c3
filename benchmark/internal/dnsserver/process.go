package dnsserver

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/netsim"
)

// ListenAddress is where Start expects the server on its host.
const ListenAddress = "127.0.0.1:53"

// Start runs the command of a DNS server on a host, waits until the server accepts connections over TCP, and returns a
// client of it. timeout limits the client's wait for an answer. stop ends the server and the client; it is valid also
// with an error.
func Start(host *netsim.Host, cmd *exec.Cmd, timeout time.Duration) (c *Client, stop func(), err error) {
	if err := host.Start(cmd); err != nil {
		return nil, func() {}, err
	}
	c = &Client{Timeout: timeout, Dial: func(ctx context.Context) (net.Conn, error) {
		return host.DialContext(ctx, "udp", ListenAddress)
	}}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		c.Close()
	}
	for range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn, err := host.DialContext(ctx, "tcp", ListenAddress)
		cancel()
		if err == nil {
			return c, stop, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, stop, errors.New("the server does not start")
}

// ConfiguredCommand writes text, the configuration of a program, to a file in dir. It returns the command that runs the
// program with args, and with the file as its last argument. The error is exec.ErrNotFound if the program is not
// installed.
func ConfiguredCommand(dir, text, program string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, program+".conf")
	return exec.Command(path, append(args, file)...), os.WriteFile(file, []byte(text), 0o644)
}

// UnboundCommand returns the command for the DNS server unbound with one thread and its files in dir. server has
// further lines for the server section of the configuration. sections has further sections, which follow it.
func UnboundCommand(dir, server, sections string) (*exec.Cmd, error) {
	return ConfiguredCommand(dir, `server:
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

// UnboundForwards returns the section of unbound's configuration that forwards all queries to the servers with the
// given addresses.
func UnboundForwards(addresses []string) string {
	return "forward-zone:\n  name: \".\"\n  forward-addr: " + strings.Join(addresses, "\n  forward-addr: ") + "\n"
}
