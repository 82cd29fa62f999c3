//go:build !hedge_nogrpc

package hedge_test

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health/grpc_health_v1" // a service that the program calls

	"github.com/gohedge/hedge"
)

func ExampleNewUnaryClientInterceptor() {
	conn, err := grpc.NewClient("dns:///catalog.test:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(hedge.NewUnaryClientInterceptor()),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Println(conn.Target())
	// Output: dns:///catalog.test:443
}

func ExampleNewInterceptor() {
	hedged := hedge.NewInterceptor(hedge.WithName("catalog"))
	conn, err := grpc.NewClient("dns:///catalog.test:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(hedged.Unary()),
		grpc.WithChainStreamInterceptor(hedged.Stream()),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	// While it runs; debug.Handler(hedged) and expvar.Publish("catalog", hedged) show it.
	err = hedged.Update(func(c *hedge.Config) { c.BudgetPercent = 2 })
	fmt.Println(err, hedged.Snapshot().Config.BudgetPercent)
	// Output: <nil> 2
}

func ExampleInterceptor_Hedges() {
	hedged := hedge.NewInterceptor(hedge.WithMethods("/grpc.health.v1.Health/Check"))
	for _, method := range []string{"Check", "List", "Watch"} {
		most, why := hedged.Hedges("/grpc.health.v1.Health/" + method)
		fmt.Println(method, most, why)
	}
	// Output:
	// Check 2 WithMethods lists it
	// List 2 its name begins with List and holds no word that writes or takes
	// Watch 0 its name begins with no word that reads
}

func ExampleWithMethods() {
	interceptor := hedge.NewUnaryClientInterceptor(
		hedge.WithMethods("/catalog.v1.Catalog/*", "/search.v1.Search/Suggest"),
		hedge.WithNonFatalCodes(codes.Unavailable),
	)
	fmt.Println(interceptor != nil)
	// Output: true
}
