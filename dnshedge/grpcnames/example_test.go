package grpcnames_test

import (
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gohedge/hedge/dnshedge/grpcnames"
	"github.com/gohedge/hedge/dnshedge/names"
)

// A gRPC client follows the addresses of its server's host.
func ExampleNewBuilder() {
	n := new(names.Names) // asks the servers of the system
	defer n.Close()
	conn, err := grpc.NewClient("hedgedns:///api.example:443",
		grpc.WithResolvers(grpcnames.NewBuilder(n)),
		grpc.WithTransportCredentials(credentials.NewTLS(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
}
