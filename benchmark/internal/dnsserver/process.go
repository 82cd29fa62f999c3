package dnsserver

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/netsim"
)

// ListenAddress is where Start expects the server on its host.
const ListenAddress = "127.0.0.1:53"

// Start runs a DNS server by cmd on a host, and returns when it accepts TCP connections at ListenAddress. The client waits
// timeout for an answer of the server. stop ends the server, and must be called also after an error.
func Start(host *netsim.Host, cmd *exec.Cmd, timeout time.Duration) (_ *Client, stop func(), err error) {
	var output OutputTail
	if cmd.Stderr == nil {
		cmd.Stdout, cmd.Stderr = &output, &output
	}
	cmd.WaitDelay = time.Second // a child process of the server may hold its output open
	if err := host.Start(cmd); err != nil {
		return nil, func() {}, err
	}
	c := &Client{Timeout: timeout, Dial: func(ctx context.Context) (net.Conn, error) {
		return host.DialContext(ctx, "udp", ListenAddress)
	}}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	err = Retry(4*time.Second, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		conn, err := host.DialContext(ctx, "tcp", ListenAddress)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, stop, fmt.Errorf("the server does not start; its output: %s", output.String())
	}
	return c, stop, nil
}

// Retry calls try every 50 ms until it returns nil or the time limit is over, and returns the result of the last call.
func Retry(limit time.Duration, try func() error) (err error) {
	deadline := time.Now().Add(limit)
	for err = try(); err != nil && time.Now().Before(deadline); err = try() {
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// An OutputTail is an io.Writer that keeps the last 400 bytes of a program's output, for error messages.
type OutputTail struct {
	mu  sync.Mutex // guards end
	end []byte
}

func (t *OutputTail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = t.end[max(0, len(t.end)-400):]
	return len(b), nil
}

// String returns the last 400 bytes written, with all line breaks replaced by spaces.
func (t *OutputTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.end)), " ")
}
