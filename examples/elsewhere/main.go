//go:build !hedge_nogrpc

// Elsewhere shows hedges that go to another backend: it starts three health services on
// loopback, of which one stops for 100 ms of each second, and calls them through gRPC's
// round_robin without hedges, with hedges, and with hedge_elsewhere around it.
//
//	go run ./examples/elsewhere
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge"
)

const (
	backends = 3
	callers  = 10
	each     = 3 * time.Second // of measuring
	usual    = 5 * time.Millisecond
	stop     = 100 * time.Millisecond // of each second
)

// service answers after the usual time, and if it stops, when it goes on.
type service struct {
	grpc_health_v1.UnimplementedHealthServer
	stops bool
}

func (s service) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	wait := usual
	if now := time.Duration(time.Now().Nanosecond()); s.stops && now < stop {
		wait += stop - now
	}
	select {
	case <-time.After(wait):
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
	case <-ctx.Done(): // the hedge was faster
		return nil, ctx.Err()
	}
}

func main() {
	log.SetFlags(0)
	var addrs []resolver.Address
	for n := range backends {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, service{stops: n == 0})
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		addrs = append(addrs, resolver.Address{Addr: listener.Addr().String()})
	}
	for _, c := range []struct {
		name, policy string
		hedged       bool
	}{
		{"not hedged", `{"round_robin":{}}`, false},
		{"hedged", `{"round_robin":{}}`, true},
		{"hedged elsewhere", `{"hedge_elsewhere":{"childPolicy":[{"round_robin":{}}]}}`, true},
	} {
		names := manual.NewBuilderWithScheme("example") // a real client has dns:///
		names.InitialState(resolver.State{Addresses: addrs})
		hedged := hedge.NewInterceptor(
			hedge.WithMethods(grpc_health_v1.Health_Check_FullMethodName), // it only reads, which its name does not say
			hedge.WithBurst(20*time.Second))                               // saved up for the stops
		hedged.SetEnabled(c.hedged)
		conn, err := grpc.NewClient("example:///", grpc.WithResolvers(names),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[`+c.policy+`]}`),
			grpc.WithChainUnaryInterceptor(hedged.Unary()))
		if err != nil {
			log.Fatal(err)
		}
		took, err := load(grpc_health_v1.NewHealthClient(conn))
		if err != nil {
			log.Fatal(err)
		}
		s := hedged.Snapshot().Stats
		fmt.Printf("%-16s  %d calls   p50 %6v   p99 %6v   p99.9 %6v   %.1f %% more load, %d of %d hedges won\n", c.name, len(took),
			took[len(took)/2], took[len(took)*99/100], took[len(took)*999/1000], 100*float64(s.HedgesSent)/float64(len(took)), s.HedgeWins, s.HedgesSent)
		if err := conn.Close(); err != nil {
			log.Fatal(err)
		}
	}
}

// load makes calls and returns how long each took, sorted.
func load(client grpc_health_v1.HealthClient) (took []time.Duration, failed error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(each)
	for range callers {
		wg.Go(func() {
			for time.Now().Before(end) {
				start := time.Now()
				_, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
				mu.Lock()
				took = append(took, time.Since(start).Round(100*time.Microsecond))
				if err != nil {
					failed = err
				}
				mu.Unlock()
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, failed
}
