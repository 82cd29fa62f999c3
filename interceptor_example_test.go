//go:build !hedge_nogrpc

package hedge_test

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health/grpc_health_v1" // a service that the program calls
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

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

// Which methods that are linked into a program are hedged, and why. RangeFiles ranges over all packages.
func ExampleInterceptor_Hedges() {
	hedged := hedge.NewInterceptor(hedge.WithMethods("/grpc.health.v1.Health/Check"))
	protoregistry.GlobalFiles.RangeFilesByPackage("grpc.health.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name())
				yes, why := hedged.Hedges(method)
				fmt.Println(method, yes, why)
			}
		}
		return true
	})
	// Output:
	// /grpc.health.v1.Health/Check true WithMethods lists it
	// /grpc.health.v1.Health/List true its name begins with List and holds no word that writes or takes
	// /grpc.health.v1.Health/Watch false its name begins with no word that reads
}

func ExampleWithMethods() {
	interceptor := hedge.NewUnaryClientInterceptor(
		hedge.WithMethods("/catalog.v1.Catalog/*", "/search.v1.Search/Suggest"),
		hedge.WithNonFatalCodes(codes.Unavailable),
	)
	fmt.Println(interceptor != nil)
	// Output: true
}
