package faultlab

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

// startUnbound starts unbound as a forwarder that accepts all queries at once, and drops no late answer.
func (r *resolver) startUnbound() (resolveFunc, error) {
	if r.conf.Memory {
		return nil, fmt.Errorf("no processes on a network in memory: %w", exec.ErrNotFound)
	}
	const server = "  do-ip6: no\n  module-config: \"iterator\"\n  outgoing-range: 4096\n  num-queries-per-thread: 2048\n  discard-timeout: 0\n"
	cmd, err := r.conf.Peers.UnboundCommand(r.Dir, server, dnsserver.UnboundForwardZone(r.serverAddresses()))
	if err != nil {
		return nil, err
	}
	return r.startResolverProcess(cmd, func(q query) query { return q })
}

// startResolverProcess runs a resolver on a host of its own. translate returns the query that is sent in place of q.
func (r *resolver) startResolverProcess(cmd *exec.Cmd, translate func(query) query) (resolveFunc, error) {
	if _, err := cmd.StdinPipe(); err != nil { // it closes when this process ends
		return nil, err
	}
	server, stop, err := dnsserver.Start(r.Net.Host(r.name), cmd, QueryTimeout)
	r.AtClose(stop)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, q query) (outcome, error) {
		q = translate(q)
		m, err := server.Exchange(ctx, q.newMessage())
		return outcomeOf(m, q), err
	}, nil
}
