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

// A Reader reads the service configs of resolvers, for a Book. What it has read of a target stays in force when its resolver is
// closed: a connection that was idle has another one.
type Reader struct {
	Book *Book
	Tell func(target string, c *Config, err error) // of a config that is adopted, or refused
}

// Wrap returns b with configs read. What gRPC gets is unchanged, but for a config with an invalid hedgingPolicy: it gets the error.
func (r *Reader) Wrap(b resolver.Builder) resolver.Builder {
	w := &builder{b, r}
	if o, ok := b.(resolver.AuthorityOverrider); ok {
		return struct {
			*builder
			resolver.AuthorityOverrider
		}{w, o}
	}
	return w
}

type builder struct {
	resolver.Builder
	reader *Reader
}

// Build has configs read, unless the connection is to have none from its resolver.
func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	if opts.DisableServiceConfig {
		return b.Builder.Build(target, cc, opts)
	}
	return b.Builder.Build(target, &conn{ClientConn: cc, target: grpctarget.OfResolver(target), reader: b.reader}, opts)
}

// conn is the ClientConn of a resolver.
type conn struct {
	resolver.ClientConn
	target string
	reader *Reader
}

// parsed has the Config of each *grpcConfig that was parsed and is still in use, by its weak pointer. A resolver may
// send one that was parsed long ago, or for another connection.
var parsed sync.Map

// ParseServiceConfig remembers the config that gRPC has parsed.
func (c *conn) ParseServiceConfig(text string) *serviceconfig.ParseResult {
	result := c.ClientConn.ParseServiceConfig(text)
	if result == nil || result.Err != nil {
		return result
	}
	own, err := read(text)
	if err != nil {
		c.reader.Tell(c.target, nil, err)
		return &serviceconfig.ParseResult{Err: err}
	}
	if by, ok := result.Config.(*grpcConfig); ok && by != nil {
		key := weak.Make(by)
		if _, known := parsed.Swap(key, own); !known {
			runtime.AddCleanup(by, func(key weak.Pointer[grpcConfig]) { parsed.Delete(key) }, key)
		}
	}
	return result
}

// UpdateState adopts the config that comes with the state before gRPC does. As there, no config, an error and an
// empty result leave the one before in force: a resolver has none when its lookup of one failed. So does a config that was not
// parsed by the ClientConn of a Reader, because nothing is known of it.
func (c *conn) UpdateState(s resolver.State) error {
	if r := s.ServiceConfig; r != nil && r.Err == nil {
		if by, ok := r.Config.(*grpcConfig); ok && by != nil {
			if own, known := parsed.Load(weak.Make(by)); known && c.reader.Book.set(c.target, own.(*Config)) {
				c.reader.Tell(c.target, own.(*Config), nil)
			}
		}
	}
	return c.ClientConn.UpdateState(s)
}
