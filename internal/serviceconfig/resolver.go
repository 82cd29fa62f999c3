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

// A ResolverReader copies the service configs that resolvers send into a Registry. The config of a target stays in
// force after its resolver is closed, because an idle connection that connects again gets a new resolver.
type ResolverReader struct {
	Registry *Registry
	Report   func(target string, c *Config, err error) // called for each adopted config, and with the error of each rejected config
}

// WrapBuilder returns a builder that builds the same resolvers as b and reports their service configs to r. gRPC gets
// the configs unchanged, but an error for an invalid hedgingPolicy.
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

// Build builds a resolver that reports to a [resolverConn]. If service configs of resolvers are disabled for the
// connection, it only builds the resolver.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	if opts.DisableServiceConfig {
		return b.Builder.Build(target, cc, opts)
	}
	return b.Builder.Build(target, &resolverConn{ClientConn: cc, target: grpctarget.ResolverName(target), reader: b.reader}, opts)
}

// A resolverConn is the ClientConn to which a resolver sends its results. It reads the service configs and passes all
// results on.
type resolverConn struct {
	resolver.ClientConn
	target string
	reader *ResolverReader
}

// parsedConfigs maps weak pointers to *grpcConfig values to their *Config. It is global, because a resolver may send a
// config that was parsed long ago or for another connection.
var parsedConfigs sync.Map

// ParseServiceConfig parses a config for gRPC and for this package, and stores the relation of both in parsedConfigs.
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

// UpdateState adopts the service config in s, and then passes s to gRPC. If s has no config or an error, the previous
// config stays in force, as in gRPC. The same holds for a config that is not in parsedConfigs.
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
