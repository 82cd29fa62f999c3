package main

import (
	"context"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/conncount"
)

// backend is the n-th health service of a fleet.
type backend struct {
	healthpb.UnimplementedHealthServer
	*fleet
	n int
}

func (b backend) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return new(healthpb.HealthCheckResponse), b.serve(ctx, b.n, number(md["call"]), int(number(md["grpc-previous-rpc-attempts"])))
}

// number reads the first of the values; 0 if there is none.
func number(values []string) int64 {
	if len(values) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(values[0], 10, 64)
	return n
}

func grpcStrategies(f *fleet) ([]strategy, error) {
	var addrs []resolver.Address
	for n := range f.n {
		l, err := f.net.listen(n)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, resolver.Address{Addr: l.Addr().String()})
		if f.world == "dead" && n == 1 {
			f.onClose(func() { l.Close() }) // nobody answers the handshake
			continue
		}
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, backend{fleet: f, n: n})
		go func() { _ = server.Serve(conncount.Listener{Listener: l, Accepted: &f.accepted}) }()
		f.onClose(server.Stop)
	}
	connect := func(name, policy string, hedged bool) (strategy, error) {
		found := manual.NewBuilderWithScheme("fleet")
		found.InitialState(resolver.State{Addresses: addrs})
		opts := []grpc.DialOption{
			grpc.WithResolvers(found), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return f.net.dial(ctx, "tcp", addr) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"` + policy + `":{}}]}`),
		}
		if hedged {
			opts = append(opts, grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor(
				hedge.WithMethods("/*"), hedge.WithBurst(f.burst))))
		}
		cc, err := grpc.NewClient("fleet:///", opts...)
		if err != nil {
			return strategy{}, err
		}
		client := healthpb.NewHealthClient(cc)
		return strategy{name, func(ctx context.Context, id int64) error {
			_, err := client.Check(metadata.AppendToOutgoingContext(ctx, "call", strconv.FormatInt(id, 10)), new(healthpb.HealthCheckRequest))
			return err
		}, func() { _ = cc.Close() }}, nil
	}
	var all []strategy
	for _, s := range []struct {
		name, policy string
		hedged       bool
	}{{"none", "round_robin", false}, {"round_robin", "round_robin", true}, {"hedge_elsewhere", "hedge_elsewhere", true}} {
		made, err := connect(s.name, s.policy, s.hedged)
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}
