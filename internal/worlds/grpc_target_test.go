//go:build !hedge_nogrpc

package worlds_test

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// policyMethod is the method in the policy of a resolver. Without the policy it must not be repeated.
const policyMethod = "UpdateItem"

const resolverConfig = `{"methodConfig":[{"name":[{"service":"shop.v1.Items","method":"` + policyMethod + `"}],"hedgingPolicy":{"maxAttempts":2,"hedgingDelay":"0.02s"}}]}`

// obeysPolicy reports whether the policy of the resolver applies to a call.
func (w *grpcScenario) obeysPolicy(c *grpcCall) bool {
	return w.way.spelt && !c.elsewhere && c.method == policyMethod
}

// dialSpelt opens the callers' connections to two targets with the spelling server:80: dns:///server:80 and
// passthrough:///server:80.
func (p *grpcPlay) dialSpelt(chain []grpc.DialOption) (conn, other *grpc.ClientConn) {
	var found resolver.Builder = newManualResolver()
	if p.hedge != nil {
		found = p.hedge.Resolver(found)
	}
	options := append(chain[:len(chain):len(chain)], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return p.network.Host("client").DialContext(ctx, "tcp", "server:80")
		}))
	conn, err := grpc.NewClient("server:80", append(options[:len(options):len(options)], grpc.WithResolvers(found))...)
	if err != nil {
		panic(err)
	}
	other, err = grpc.Dial("server:80", options...) //lint:ignore SA1019 NewClient has no such target
	if err != nil {
		panic(err)
	}
	return conn, other
}

func newManualResolver() *manual.Resolver {
	found := manual.NewBuilderWithScheme("dns")
	found.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
		_ = cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: "server:80"}}, ServiceConfig: cc.ParseServiceConfig(resolverConfig)})
	}
	return found
}
