//go:build !hedge_nogrpc

package hedge

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
)

// DialOptions returns options for grpc.NewClient that pass a service config to gRPC and also apply its hedging part,
// which grpc-go ignores. Calls of the connection are hedged by a new Interceptor with the options opts; see
// [WithServiceConfig].
//
// DialOptions returns an error if options contradict each other or the config is invalid. For an invalid config, the
// error names the path in the config and the value.
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

// UpdateServiceConfig replaces the config of [WithServiceConfig] for calls that start afterwards; "{}" removes it.
// Learned latencies are kept. If the config is invalid, UpdateServiceConfig changes nothing and returns an error, which
// names the path in the config and the value.
func (in *Interceptor) UpdateServiceConfig(config string) error {
	in.mustBeInitialized()
	c, err := readConfig(config)
	if err != nil {
		return err
	}
	in.calls.SetServiceConfig(c, "UpdateServiceConfig")
	return nil
}

// Resolver returns a resolver builder that wraps b, so that the Interceptor also applies the hedging policies in the
// service configs of b. Pass the result to grpc.WithResolvers.
//
// As in gRPC, a config of b takes precedence over the config of [WithServiceConfig]. If a hedgingPolicy in a config of
// b is invalid, the previous config stays in force and b gets the error. The first call over a connection may start
// before b has sent a config.
func (in *Interceptor) Resolver(b resolver.Builder) resolver.Builder {
	in.mustBeInitialized()
	return in.calls.Resolver(b)
}
