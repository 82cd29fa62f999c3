//go:build !hedge_nogrpc

package hedge

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/gohedge/hedge/internal/conns"
	"github.com/gohedge/hedge/internal/grpccall"
	"github.com/gohedge/hedge/internal/serviceconfig"
)

// newGRPCOption returns an option that calls set on the options of package grpccall when an Interceptor is made.
func newGRPCOption(set func(*grpccall.Options)) GRPCOption {
	return optionFunc(func(c *constructorOptions) { c.grpcSettings = append(c.grpcSettings, set) })
}

// newGRPCCallOptions returns the options in c that package grpccall needs.
func newGRPCCallOptions(c *constructorOptions) grpccall.Options {
	g := grpccall.Options{KeyFunc: c.keyFunc, Routes: c.routes, Methods: c.methods}
	for _, set := range c.grpcSettings {
		set.(func(*grpccall.Options))(&g)
	}
	return g
}

// WithHedgeConn sends gRPC hedges over cc, which may lead to another set of replicas. The constructor of the
// Interceptor starts to connect cc. A hedge that finds cc idle reconnects it. While cc is not connected, no hedges are
// sent. It panics if cc is nil.
//
// Only calls to the target of cc and to the given targets are hedged. Calls to other targets are not hedged, which is
// logged. The given targets must name the same service as cc, for example another set of replicas or another network
// path.
//
// A given target is the Target or the CanonicalTarget of a ClientConn, including its query, as in
// "dns:///orders:443?zone=a". The target of cc itself matches in any spelling.
//
// If an attempt fails with Unavailable, a hedge over cc starts at once, see [WithHedgeConns].
//
// Without this option, a hedge uses the ClientConn of the primary. With the balancer round_robin the hedge then often
// goes to another backend, with hedge_elsewhere always (see [Interceptor]), and with pick_first never.
func WithHedgeConn(cc *grpc.ClientConn, targets ...string) GRPCOption {
	if cc == nil {
		panic("hedge: WithHedgeConn: *ClientConn is nil")
	}
	return withConns("WithHedgeConn", targets, HedgeConn{Conn: cc})
}

// A HedgeConn is a connection over which gRPC hedges are sent, see [WithHedgeConns].
type HedgeConn struct {
	Conn *grpc.ClientConn // connection, which the program opens and closes
	// Cost is the number of budget tokens that a hedge over Conn costs, at most 100. The default, 0, means 1.
	Cost int
}

// WithHedgeConns is [WithHedgeConn] for up to seven connections in order of preference, for example to other regions.
// Calls to the targets of all connections and to the given targets are hedged. Primaries stay on the caller's
// ClientConn. To let primaries fail over, the resolver of that ClientConn must return addresses of several regions.
//
// A hedge uses the first connection that is READY, is not ejected, and has no attempt of the same call. If all have an
// attempt of the call, the hedge uses a connection again. If no connection qualifies, the hedge is not sent, with the
// reason [DeniedNotReady].
//
// If an attempt fails with Unavailable, without pushback, another hedge starts at once, over a connection that its call has
// not used. The other limits of hedges apply. After the primary has failed, no other hedge starts. The failure waits for
// that hedge as with [WithEndpoints]. Methods with a hedgingPolicy follow that instead. A stream that cannot be opened
// starts no hedge, because its message is not known yet.
//
// A connection is ejected if 8 % of its recent hedges, or six in a row, ended with a failure status or Unauthenticated.
// Cancelled hedges do not count. One in ten of the hedges that skip an ejected connection tries it again. If primaries
// fail as often, the connection is still used by hedges that have no other connection.
//
// A pause of hedging for one target does not affect hedges to other targets. If a hedge is pushed back, its call sends
// no more hedges to that target. KeySnapshot.Endpoints shows the state of the caller's connection and of the
// connections of this option.
//
// The metadata of a call, such as authorization, and its call options, such as [grpc.PerRPCCredentials], go over every
// connection. So do not add a connection to a server that must not get them, or a connection without TLS if others have
// TLS. Interceptors, [grpc.WithDefaultCallOptions] and [grpc.WithPerRPCCredentials] apply to the connection on which
// they are set. docs/http-grpc.md has an overview.
//
// It panics if there are no connections or more than seven, if a Conn is nil or given twice, or if a Cost is not in [0,
// 100].
func WithHedgeConns(targets []string, conns ...HedgeConn) GRPCOption {
	return withConns("WithHedgeConns", targets, conns...)
}

// withConns implements [WithHedgeConn] and [WithHedgeConns]. It returns an option that sends hedges over the given
// connections. It panics if an argument is invalid. The argument name is the name of the option, for error texts.
func withConns(name string, targets []string, given ...HedgeConn) GRPCOption {
	all := make([]conns.Config, len(given))
	for i, g := range given {
		all[i] = conns.Config(g)
	}
	set, err := conns.NewSet(targets, all)
	if err != nil {
		panic("hedge: " + name + ": " + err.Error())
	}
	argument := make([]string, len(given))
	for i, g := range given {
		argument[i] = g.Conn.Target()
	}
	return newOption(name, strings.Join(argument, ", "), func(c *constructorOptions) {
		c.maxHedgeCost = set.MaxCost()
		c.grpcSettings = append(c.grpcSettings, func(g *grpccall.Options) { g.HedgeConns = set })
	})
}

// WithDeclaredMethods hedges only gRPC methods that are declared as safe to send twice: by [WithMethods], a route, a
// hedgingPolicy, [AllowHedging], or their protobuf descriptor. By default, a method without any declaration is also
// hedged if its name is that of a read (see WithMethods).
func WithDeclaredMethods() GRPCOption {
	return newGRPCOption(func(c *grpccall.Options) { c.DeclaredOnly = true })
}

// WithNonFatalCodes sets the gRPC codes with which a failed primary waits for the hedges in flight. Any other code of
// the primary ends the call at once. A failed hedge never ends the call, see [WithAnswerCodes].
//
// The default is Unavailable, ResourceExhausted, Aborted, Internal and Unknown, as in gRFC A6. It also includes
// DeadlineExceeded, Canceled and DataLoss, which stalled or stopping servers return. It panics if a code is OK.
func WithNonFatalCodes(cs ...codes.Code) GRPCOption {
	set := newCodeSet("WithNonFatalCodes", cs)
	return newGRPCOption(func(c *grpccall.Options) { c.NonFatalCodes = set })
}

// WithAnswerCodes sets additional gRPC codes with which a hedge wins, as it does with OK. These codes take precedence
// over [WithNonFatalCodes]. It panics if a code is OK.
//
// The default is none, because a code may depend on the attempt: NotFound from a replica that lags, Unauthenticated for
// a token that may be used once. If all backends give the same response, add NotFound. Stats.AnswersNotTaken counts the
// hedges that would have won with more codes.
func WithAnswerCodes(cs ...codes.Code) GRPCOption {
	set := newCodeSet("WithAnswerCodes", cs)
	return newGRPCOption(func(c *grpccall.Options) { c.AnswerCodes = set })
}

// WithServiceConfig applies the hedging part of a gRPC service config (gRFC A6), a JSON text: hedgingPolicy and
// retryThrottling. It applies to all targets whose resolvers send no config, see [Interceptor.Resolver]. The default is
// no config. The other parts must be passed to gRPC; [DialOptions] does both. It panics if the config is invalid.
//
// A method with a hedgingPolicy may be hedged whatever its name, with up to maxAttempts attempts, one after each
// hedgingDelay. Without hedgingDelay the learned delays apply. This differs from A6, where hedges then start at once;
// use "0s" for that.
//
// A failure with a code in nonFatalStatusCodes starts the next hedge at once, and the delays of further hedges count
// from that time. Any other code of the primary ends the call. grpc-retry-pushback-ms delays the next hedge, or forbids
// all further hedges.
//
// [WithRoute], [AllowHedging], [WithoutHedging], SetEnabled and HEDGE_DISABLED take precedence over the config. The
// budget, pauses, the audit, the first ten calls, and the codes with which a hedge wins are as for other methods.
func WithServiceConfig(config string) GRPCOption {
	c, err := readConfig(config)
	if err != nil {
		panic(err)
	}
	return withParsedConfig(c)
}

// withParsedConfig is [WithServiceConfig] for a config that is already parsed.
func withParsedConfig(c *serviceconfig.Config) GRPCOption {
	return newGRPCOption(func(g *grpccall.Options) { g.ServiceConfig = c })
}

// readConfig parses a service config that the program has passed as an option. It returns an error if the config is
// invalid, or if a hedgingPolicy has an unknown field.
//
// It must not be used for configs of resolvers, which may have fields that are newer than the program.
func readConfig(config string) (*serviceconfig.Config, error) {
	c, err := serviceconfig.Parse(config)
	switch {
	case err != nil:
		return nil, fmt.Errorf("hedge: service config: %w", err)
	case len(c.UnknownFields) > 0:
		return nil, fmt.Errorf("hedge: service config: %s: a hedgingPolicy has no such field", c.UnknownFields[0])
	}
	return c, nil
}

// newCodeSet returns the set of the gRPC codes that were passed to the named option. It panics if a code is OK.
func newCodeSet(option string, cs []codes.Code) map[codes.Code]bool {
	set := make(map[codes.Code]bool)
	for _, c := range cs {
		if c == codes.OK {
			panic("hedge: " + option + ": code is OK")
		}
		set[c] = true
	}
	return set
}
