package faultlab

import (
	"context"
	"net"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/dnshedge"
)

// Names of contenders that others are compared with.
const (
	GoResolver = "net-resolver"
	Unbound    = "unbound"
)

// contenders start in the environment of their resolver, which they complete.
var contenders = []lab.Contender[*resolver, resolveFunc]{
	{Name: GoResolver, Start: (*resolver).startGoResolver},
	{Name: Unbound, Start: (*resolver).startUnbound},
	{Name: "hedge-resolvconf", Start: func(r *resolver) (resolveFunc, error) {
		return r.startLibraryClient(&dnshedge.Client{ResolvConf: r.resolvConfPath()})
	}},
	{Name: "hedge-upstreams", Start: func(r *resolver) (resolveFunc, error) {
		client := &dnshedge.Client{Upstreams: r.upstreams()}
		if r.namesDiffer {
			client.Order = dnshedge.OrderStrict
		}
		return r.startLibraryClient(client)
	}},
	{Name: "hedge-fallback", Start: func(r *resolver) (resolveFunc, error) {
		upstreams := r.upstreams()
		if len(upstreams) == 1 {
			upstreams = append(upstreams, dnshedge.Upstream{Net: "tcp", Addr: upstreams[0].Addr})
		}
		return r.startLibraryClient(&dnshedge.Client{Upstreams: upstreams[:1], Fallback: upstreams[1:]})
	}},
}

// Contenders lists the names of all contenders, Go's resolver and unbound first.
var Contenders = lab.NamesOf(contenders)

func (l *testbed) upstreams() (upstreams []dnshedge.Upstream) {
	for _, address := range l.serverAddresses() {
		upstreams = append(upstreams, dnshedge.Upstream{Net: "udp", Addr: net.JoinHostPort(address, "53")})
	}
	return upstreams
}

// startLibraryClient sets the client's timeout and dialer, and returns a function that resolves queries by the client.
func (r *resolver) startLibraryClient(client *dnshedge.Client) (resolveFunc, error) {
	client.Timeout, client.Dialer = QueryTimeout, r.Net.Host(r.name)
	r.AtClose(func() { _ = client.Close() })
	return func(_ context.Context, q query) (outcome, error) {
		m, _, err := client.Exchange(q.newMessage(), "")
		return outcomeOf(m, q), err
	}, client.Validate()
}
