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

// A grpcConfig is a service config as grpc-go has parsed it.
//
//lint:ignore SA1019 a ParseResult of grpc-go holds no other type
type grpcConfig = grpc.ServiceConfig

// A ConfigRecorder wraps gRPC resolvers, and copies the service configs that they send into a Registry.
//
// The config of a target stays in the Registry after its resolver is closed, because an idle connection that connects
// again gets a new resolver.
type ConfigRecorder struct {
	Registry *Registry
	Report   func(target string, c *Config, err error) // called with each config that is stored, and with the error of each rejected config; the config is then nil
}

// WrapBuilder returns a resolver builder that builds the same resolvers as b. Their service configs are copied to the
// Registry of r. gRPC gets the configs unchanged, with one exception: a config with an invalid hedgingPolicy is
// replaced by an error.
func (r *ConfigRecorder) WrapBuilder(b resolver.Builder) resolver.Builder {
	w := &resolverBuilder{b, r}
	if o, ok := b.(resolver.AuthorityOverrider); ok {
		return struct {
			*resolverBuilder
			resolver.AuthorityOverrider
		}{w, o}
	}
	return w
}

// A resolverBuilder builds the resolvers of the wrapped builder, so that a [ConfigRecorder] gets their service configs.
type resolverBuilder struct {
	resolver.Builder
	recorder *ConfigRecorder
}

// Build implements [resolver.Builder]. The resolver sends its results to a [resolverConn]. If gRPC ignores service
// configs of resolvers for the connection, Build only calls the wrapped builder.
func (b *resolverBuilder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	if opts.DisableServiceConfig {
		return b.Builder.Build(target, cc, opts)
	}
	return b.Builder.Build(target, &resolverConn{ClientConn: cc, target: grpctarget.ResolverName(target), recorder: b.recorder}, opts)
}

// A resolverConn is the [resolver.ClientConn] to which a resolver sends its results. It reads the service configs and
// passes all results to gRPC.
type resolverConn struct {
	resolver.ClientConn
	target   string // name that package grpctarget returns
	recorder *ConfigRecorder
}

// parsedConfigs maps weak pointers to *grpcConfig values to the *Config values that were parsed from the same text. It
// is global, because a resolver may send a config that was parsed long ago or for another connection.
var parsedConfigs sync.Map

// ParseServiceConfig implements [resolver.ClientConn]. It parses a config by gRPC and by this package, and stores the
// relation between both results in parsedConfigs. It returns the result of gRPC, or an error if a hedgingPolicy is
// invalid.
func (c *resolverConn) ParseServiceConfig(text string) *serviceconfig.ParseResult {
	result := c.ClientConn.ParseServiceConfig(text)
	if result == nil || result.Err != nil {
		return result
	}
	own, err := parseAccepted(text)
	if err != nil {
		c.recorder.Report(c.target, nil, err)
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

// UpdateState implements [resolver.ClientConn]. It stores the service config of s in the Registry, and then passes s to
// gRPC.
//
// The previous config stays, as in gRPC, if s has no config or an error. It also stays if the config of s is not in
// parsedConfigs.
func (c *resolverConn) UpdateState(s resolver.State) error {
	if r := s.ServiceConfig; r != nil && r.Err == nil {
		if by, ok := r.Config.(*grpcConfig); ok && by != nil {
			if own, known := parsedConfigs.Load(weak.Make(by)); known && c.recorder.Registry.setTarget(c.target, own.(*Config)) {
				c.recorder.Report(c.target, own.(*Config), nil)
			}
		}
	}
	return c.ClientConn.UpdateState(s)
}
