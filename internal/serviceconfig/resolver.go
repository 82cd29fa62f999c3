package serviceconfig

import (
	"slices"
	"sync"

	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
)

// A Reader reads the service configs of resolvers, for a Book. What it has read of a target stays in force when its resolver is
// closed: a connection that was idle has another one.
type Reader struct {
	Book *Book
	Tell func(target string, c *Config, err error) // of a config that is adopted, or refused
}

// Wrap returns b with configs read. What gRPC gets is unchanged, but for a config that Parse refuses: it gets the error.
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
	return b.Builder.Build(target, &conn{ClientConn: cc, target: target.String(), reader: b.reader}, opts)
}

// maxParsed is how many results of a resolver's last configs are kept: one that is updated is mostly the last.
const maxParsed = 64

// conn is what a resolver tells what it has found.
type conn struct {
	resolver.ClientConn
	target string
	reader *Reader

	mu     sync.Mutex // guards parsed
	parsed []parsed
}

type parsed struct {
	by  serviceconfig.Config // gRPC's, a pointer
	own *Config
}

// ParseServiceConfig remembers the config that gRPC has parsed.
func (c *conn) ParseServiceConfig(text string) *serviceconfig.ParseResult {
	result := c.ClientConn.ParseServiceConfig(text)
	if result == nil || result.Err != nil {
		return result
	}
	own, err := Parse(text)
	if err != nil {
		c.reader.Tell(c.target, nil, err)
		return &serviceconfig.ParseResult{Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.parsed) >= maxParsed {
		c.parsed = slices.Delete(c.parsed, 0, 1)
	}
	c.parsed = append(c.parsed, parsed{result.Config, own})
	return result
}

// UpdateState adopts the config that comes with the state before gRPC does. As there, no config, an error and an
// empty result leave the one before in force: a resolver has none when its lookup of one failed.
func (c *conn) UpdateState(s resolver.State) error {
	if r := s.ServiceConfig; r != nil && r.Err == nil && r.Config != nil {
		own := c.find(r.Config)
		if c.reader.Book.set(c.target, own) && own != nil {
			c.reader.Tell(c.target, own, nil)
		}
	}
	return c.ClientConn.UpdateState(s)
}

func (c *conn) find(by serviceconfig.Config) *Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parsed {
		if p.by == by {
			return p.own
		}
	}
	return nil
}
