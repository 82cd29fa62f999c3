package faultlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/asker"
)

// listen is where contenders that are processes are asked, each on its own host.
const listen = "127.0.0.1:53"

// unbound has room for all questions at once, and drops none of its answers for being late.
func (b *bench) unbound(c *contender) error {
	if b.conf.Memory {
		return fmt.Errorf("on a memory network: %w", exec.ErrNotFound)
	}
	path, err := exec.LookPath("unbound")
	if err != nil {
		return err
	}
	var forwards strings.Builder
	for _, h := range b.hosts() {
		fmt.Fprintf(&forwards, "  forward-addr: %s\n", b.net.Host(h).Addr())
	}
	file := filepath.Join(b.dir, "unbound.conf")
	err = os.WriteFile(file, fmt.Appendf(nil, `server:
  interface: 127.0.0.1
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: %q
  pidfile: ""
  use-syslog: no
  logfile: ""
  verbosity: 0
  do-daemonize: no
  do-ip6: no
  module-config: "iterator"
  num-threads: 1
  outgoing-range: 4096
  num-queries-per-thread: 2048
  discard-timeout: 0
remote-control:
  control-enable: no
forward-zone:
  name: "."
%s`, b.dir, &forwards), 0o600)
	if err != nil {
		return err
	}
	return b.process(c, exec.Command(path, "-d", "-c", file), func(q question) question { return q })
}

// process starts a program on the contender's host and has c ask it what as makes of its questions.
func (b *bench) process(c *contender, cmd *exec.Cmd, as func(question) question) error {
	host := b.net.Host(c.name)
	if _, err := cmd.StdinPipe(); err != nil { // it ends with this process
		return err
	}
	if err := host.Start(cmd); err != nil {
		return err
	}
	questions := &asker.Asker{Timeout: Patience, Dial: func(ctx context.Context) (net.Conn, error) {
		return host.DialContext(ctx, "udp", listen)
	}}
	c.close = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		questions.Close()
	}
	c.ask = func(ctx context.Context, q question) (said, error) {
		q = as(q)
		m, err := questions.Ask(ctx, q.message())
		return saidBy(m, q), err
	}
	for range 200 { // it is ready when it accepts connections
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		conn, err := host.DialContext(ctx, "tcp", listen)
		cancel()
		if err == nil {
			return conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("it does not start")
}
