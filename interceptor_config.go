//go:build !hedge_nogrpc

package hedge

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// DialOptions returns options for grpc.NewClient with a service config: gRPC has it as its default, and an
// Interceptor obeys what it says of hedging, which grpc-go takes and ignores, see [WithServiceConfig]. The options of
// hedge are those of the Interceptor. The error names the path in the config, and the value.
func DialOptions(config string, opts ...GRPCOption) ([]grpc.DialOption, error) {
	c, err := readConfig(config)
	if err != nil {
		return nil, err
	}
	in, err := NewInterceptorWithConfig(DefaultConfig(), append(opts[:len(opts):len(opts)], withParsedConfig(c))...)
	if err != nil {
		return nil, err
	}
	return []grpc.DialOption{
		grpc.WithDefaultServiceConfig(config), grpc.WithChainUnaryInterceptor(in.Unary()), grpc.WithChainStreamInterceptor(in.Stream()),
	}, nil
}

// UpdateServiceConfig obeys another config from now on, in place of that of [WithServiceConfig]; "{}" says nothing. What was learned is
// kept. If the config is invalid nothing changes, and the error names the path in it and the value.
func (in *Interceptor) UpdateServiceConfig(config string) error {
	in.mustBeInitialized()
	c, err := readConfig(config)
	if err != nil {
		return err
	}
	in.calls.SetServiceConfig(c, "UpdateServiceConfig")
	return nil
}

// Resolver returns b, whose service configs the Interceptor obeys as well: pass it to grpc.WithResolvers. As in gRPC, a
// config that b sends for a target counts more than that of [WithServiceConfig], and if it is invalid, the old one stays and b
// is given the error. A config that gRPC accepts is invalid only if a hedgingPolicy in it is. The first call over a connection may be made before b has sent one.
func (in *Interceptor) Resolver(b resolver.Builder) resolver.Builder {
	in.mustBeInitialized()
	return in.calls.Resolver(b)
}
