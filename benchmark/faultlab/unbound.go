package faultlab

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

// startUnbound starts unbound as a forwarder, set to accept all queries of a run at once and to answer however late.
func (r *resolver) startUnbound() (resolveFunc, error) {
	if r.conf.Memory {
		return nil, fmt.Errorf("no processes on a network in memory: %w", exec.ErrNotFound)
	}
	conf := dnsserver.ForwarderConfig{Peers: r.conf.Peers, Dir: r.Dir, Upstreams: r.serverAddresses(), Transport: "udp"}
	cmd, err := conf.UnboundCommand("  do-ip6: no\n  outgoing-range: 4096\n  num-queries-per-thread: 2048\n  discard-timeout: 0\n")
	if err != nil {
		return nil, err
	}
	return r.startResolverProcess(cmd)
}

// startResolverProcess runs a resolver on a host of its own by cmd. It returns a function that queries the resolver.
func (r *resolver) startResolverProcess(cmd *exec.Cmd) (resolveFunc, error) {
	if _, err := cmd.StdinPipe(); err != nil { // it closes when this process ends
		return nil, err
	}
	server, stop, err := dnsserver.Start(r.Net.Host(r.name), cmd, QueryTimeout)
	r.AtClose(stop)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, q query) (outcome, error) {
		m, err := server.Exchange(ctx, q.newMessage())
		return outcomeOf(m, q), err
	}, nil
}
