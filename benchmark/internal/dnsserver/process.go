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

// Start runs a server on a host, waits until it accepts connections over TCP, and returns a client of the server. stop
// ends both; it is valid also with an error.
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

// ConfiguredCommand writes the configuration of a program to a file in dir, and returns the command with the file as
// its last argument. The error is exec.ErrNotFound if the program is not installed.
func ConfiguredCommand(dir, text, program string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, program+".conf")
	return exec.Command(path, append(args, file)...), os.WriteFile(file, []byte(text), 0o644)
}

// UnboundCommand returns the command for unbound with one thread and its files in dir. server has further lines of the
// configuration's server section, and sections after it.
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

// UnboundForwards returns the section of unbound's configuration that forwards all queries to the given addresses.
func UnboundForwards(addresses []string) string {
	return "forward-zone:\n  name: \".\"\n  forward-addr: " + strings.Join(addresses, "\n  forward-addr: ") + "\n"
}
