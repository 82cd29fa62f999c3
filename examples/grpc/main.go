//go:build !hedge_nogrpc

// Grpc shows hedged unary calls: it starts a slow health service on loopback,
// calls it through the interceptor, and prints what was hedged and what was not.
//
//	go run ./examples/grpc
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gohedge/hedge"
)

// slow is a health service of which one answer in twenty takes ten times as long.
type slow struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (slow) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	d := time.Duration(3+rand.IntN(5)) * time.Millisecond
	if rand.IntN(20) == 0 {
		d *= 10
	}
	select {
	case <-time.After(d):
		return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
	case <-ctx.Done(): // the hedge was faster: stop working
		return nil, ctx.Err()
	}
}

func main() {
	log.SetFlags(0)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, slow{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	var stats *hedge.Stats
	interceptor := hedge.NewUnaryClientInterceptor(
		hedge.WithMethods(grpc_health_v1.Health_Check_FullMethodName), // it only reads, which its name does not say
		hedge.WithStats(&stats),
		hedge.WithLogger(slog.New(slog.NewTextHandler(os.Stdout, nil))),
	)
	for _, c := range []struct {
		name string
		opts []grpc.DialOption
	}{
		{"plain", nil},
		{"hedged", []grpc.DialOption{grpc.WithChainUnaryInterceptor(interceptor)}},
	} {
		conn, err := grpc.NewClient(listener.Addr().String(), append(c.opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		took, err := load(grpc_health_v1.NewHealthClient(conn))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-7s p50 %6v   p95 %6v   p99 %6v   max %6v\n", c.name,
			took[calls/2], took[calls*95/100], took[calls*99/100], took[calls-1])
	}
	s := stats.Snapshot()
	fmt.Printf("\n%d of %d calls were hedged, %d hedges won: %.1f %% more load\n",
		s.HedgedRequests, s.TotalRequests, s.HedgeWins, 100*float64(s.HedgesSent)/float64(s.TotalRequests))
}

const calls = 500

// load makes the calls and returns how long each took, sorted.
func load(client grpc_health_v1.HealthClient) ([]time.Duration, error) {
	took := make([]time.Duration, calls)
	for i := range took {
		start := time.Now()
		if _, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			return nil, err
		}
		took[i] = time.Since(start).Round(100 * time.Microsecond)
	}
	slices.Sort(took)
	return took, nil
}
