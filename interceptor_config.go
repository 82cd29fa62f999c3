//go:build !hedge_nogrpc

package hedge

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// DialOptions returns options for grpc.NewClient that set the default service config of the connection and hedge its
// calls accordingly. The hedging part of the config, which grpc-go ignores, applies to a new Interceptor with the
// options opts; see [WithServiceConfig]. If the config is invalid, the error names the path in the config and the
// value.
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

// UpdateServiceConfig replaces the config of [WithServiceConfig]; "{}" removes it. Learned latencies are kept. If the
// config is invalid, nothing changes, and the error names the path in the config and the value.
func (in *Interceptor) UpdateServiceConfig(config string) error {
	in.mustBeInitialized()
	c, err := readConfig(config)
	if err != nil {
		return err
	}
	in.calls.SetServiceConfig(c, "UpdateServiceConfig")
	return nil
}

// Resolver wraps b so that the Interceptor also applies the hedging policies in the service configs of b. Pass the
// result to grpc.WithResolvers.
//
// As in gRPC, a config of b takes precedence over that of [WithServiceConfig]. If a hedgingPolicy in a config of b is
// invalid, the previous config stays in force and b gets the error. The first call over a connection may start before b
// has sent a config.
func (in *Interceptor) Resolver(b resolver.Builder) resolver.Builder {
	in.mustBeInitialized()
	return in.calls.Resolver(b)
}
