package serviceconfig

import (
	"runtime"
	"sync"
	"weak"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/gohedge/hedge/internal/grpctarget"
)

// A grpcConfig is a service config that grpc-go has parsed.
//
//lint:ignore SA1019 a ParseResult of grpc-go holds no other type
type grpcConfig = grpc.ServiceConfig

// A ResolverReader stores the service configs that resolvers send in a Registry. The config of a target stays in force when its resolver is closed: a
// connection that was idle has a new resolver.
type ResolverReader struct {
	Registry *Registry
	Report   func(target string, c *Config, err error) // gets each config that is adopted, and each error of a rejected config
}

// WrapBuilder returns a builder whose resolvers report their configs to r. gRPC gets the same configs. Only for an invalid hedgingPolicy it gets an
// error.
func (r *ResolverReader) WrapBuilder(b resolver.Builder) resolver.Builder {
	w := &resolverBuilder{b, r}
	if o, ok := b.(resolver.AuthorityOverrider); ok {
		return struct {
			*resolverBuilder
			resolver.AuthorityOverrider
		}{w, o}
	}
	return w
}

type resolverBuilder struct {
	resolver.Builder
	reader *ResolverReader
}

// Build wraps the connection, unless the service configs of its resolver are disabled.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	if opts.DisableServiceConfig {
		return b.Builder.Build(target, cc, opts)
	}
	return b.Builder.Build(target, &resolverConn{ClientConn: cc, target: grpctarget.OfResolver(target), reader: b.reader}, opts)
}

// A resolverConn is the ClientConn that a resolver reports to.
type resolverConn struct {
	resolver.ClientConn
	target string
	reader *ResolverReader
}

// parsedConfigs maps a weak pointer to each *grpcConfig in use to its Config. A resolver may send a config that was parsed long ago, or for another
// connection.
var parsedConfigs sync.Map

// ParseServiceConfig parses a config for gRPC, and stores its Config in parsedConfigs.
func (c *resolverConn) ParseServiceConfig(text string) *serviceconfig.ParseResult {
	result := c.ClientConn.ParseServiceConfig(text)
	if result == nil || result.Err != nil {
		return result
	}
	own, err := parseAccepted(text)
	if err != nil {
		c.reader.Report(c.target, nil, err)
		return &serviceconfig.ParseResult{Err: err}
	}
	if by, ok := result.Config.(*grpcConfig); ok && by != nil {
		key := weak.Make(by)
		if _, known := parsedConfigs.Swap(key, own); !known {
			runtime.AddCleanup(by, func(key weak.Pointer[grpcConfig]) { parsedConfigs.Delete(key) }, key)
		}
	}
	return result
}

// UpdateState adopts the config of a state before gRPC does. No config, an error and an empty result leave the old config in force, as in gRPC: a
// resolver has no config if its lookup failed. A config that no resolverConn parsed has the same effect.
func (c *resolverConn) UpdateState(s resolver.State) error {
	if r := s.ServiceConfig; r != nil && r.Err == nil {
		if by, ok := r.Config.(*grpcConfig); ok && by != nil {
			if own, known := parsedConfigs.Load(weak.Make(by)); known && c.reader.Registry.setTarget(c.target, own.(*Config)) {
				c.reader.Report(c.target, own.(*Config), nil)
			}
		}
	}
	return c.ClientConn.UpdateState(s)
}
