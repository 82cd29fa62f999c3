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

// newGRPCOption returns an option that changes the options of gRPC calls.
func newGRPCOption(set func(*grpccall.Options)) GRPCOption {
	return optionFunc(func(c *config) { c.grpcSettings = append(c.grpcSettings, set) })
}

// grpccallOptions returns the options of gRPC calls.
func grpccallOptions(c *config) grpccall.Options {
	g := grpccall.Options{KeyFunc: c.key, Routes: c.routes, Methods: c.methods}
	for _, set := range c.grpcSettings {
		set.(func(*grpccall.Options))(&g)
	}
	return g
}

// WithHedgeConn sends gRPC hedges over cc: another connection to the same
// target, or another set of replicas. cc connects when the interceptor is made,
// and again when a hedge finds that it has become idle; no hedge is sent while it
// is not connected. It panics if cc is nil.
//
// The Interceptor then hedges calls to the target of cc, and to those targets that are given: they are the
// same service by another name, as another set of replicas or another way to it has one. A given target is the Target or the
// CanonicalTarget of a ClientConn. If it has a query, as in "dns:///orders:443?zone=a", the given target must include the query.
// The target of cc is compared by its canonical name, with the query: for another spelling of it, nothing needs to be given.
// Calls to other targets are sent once, and the log says so.
//
// Without it, hedges go over the primary's ClientConn, where round_robin often picks
// another backend for them, hedge_elsewhere always does (see [Interceptor]), and
// pick_first never.
func WithHedgeConn(cc *grpc.ClientConn, targets ...string) GRPCOption {
	if cc == nil {
		panic("hedge: WithHedgeConn: *ClientConn is nil")
	}
	return withConns("WithHedgeConn", targets, HedgeConn{Conn: cc})
}

// A HedgeConn is a connection for gRPC hedges, see [WithHedgeConns]. Cost is how many hedges one over Conn counts as in the budget; 0 is 1, and
// 100 the most.
type HedgeConn struct {
	Conn *grpc.ClientConn
	Cost int
}

// WithHedgeConns is [WithHedgeConn] for up to seven connections, in order of preference, as to other regions. It hedges calls to the targets of
// all, and to those that are given. Primaries stay on the ClientConn that they are made with. If they are to go
// elsewhere while their target is down, its resolver must return the addresses of several.
//
// A hedge goes over the next connection that its call has not been to, that is READY and does not fail, and over such a one again if the call has been to
// all. If there is none it is not sent, and counts as [DeniedNotReady]. A connection fails if 8 % of its last hedges, or six in a row, ended with a status that
// is no answer, or Unauthenticated, unless they were cancelled. One in ten of the hedges that pass it over tries it; if primaries fail as often, all do that have no
// other. Brakes of a target do not hold back hedges to another one, and a hedge that was pushed back is the last of its call there. KeySnapshot.Endpoints tells how the connections fare, of which the first is the caller's.
//
// What the caller gives a call goes over every connection: metadata, such as authorization, and call options, such as [grpc.PerRPCCredentials]. Interceptors,
// [grpc.WithDefaultCallOptions] and [grpc.WithPerRPCCredentials] are those of each connection (docs/protocols.md has a table). So give no
// connection to those that must not have a call's credentials, nor one without TLS beside one with it.
//
// It panics if there are no connections or more than seven, a Conn is nil or given twice, or a Cost is not in [0, 100].
func WithHedgeConns(targets []string, conns ...HedgeConn) GRPCOption {
	return withConns("WithHedgeConns", targets, conns...)
}

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
	return newOption(name, strings.Join(argument, ", "), func(c *config) {
		c.maxHedgeCost = set.MaxCost()
		c.grpcSettings = append(c.grpcSettings, func(g *grpccall.Options) { g.HedgeConns = set })
	})
}

// WithDeclaredMethods hedges no method because of its name. The default trusts names
// where nothing is declared, which [WithMethods] describes. What [WithMethods], a route or
// [AllowHedging] allows is hedged as ever.
func WithDeclaredMethods() GRPCOption {
	return newGRPCOption(func(c *grpccall.Options) { c.DeclaredOnly = true })
}

// WithNonFatalCodes says with which gRPC codes a primary that failed waits for
// a hedge that is out. The default is Unavailable, ResourceExhausted, Aborted,
// Internal and Unknown, as in gRFC A6, and what a server that is stuck or shuts down says:
// DeadlineExceeded, Canceled and DataLoss. Any other code of the primary ends the call. A
// hedge's ends no call, see [WithAnswerCodes]. It panics if a code is OK.
func WithNonFatalCodes(cs ...codes.Code) GRPCOption {
	set := codeSet("WithNonFatalCodes", cs)
	return newGRPCOption(func(c *grpccall.Options) { c.NonFatalCodes = set })
}

// WithAnswerCodes says which gRPC codes are an answer from every attempt, besides OK: a hedge
// that ends with one of them ends its call. The default is none, because a code may be true of
// one attempt alone: NotFound of a replica that lags, Unauthenticated where a token may be used
// once. Where all backends know the same, NotFound is a code to add; Stats.AnswersNotTaken
// counts what it would help. It counts more than [WithNonFatalCodes]. It panics if a code is OK.
func WithAnswerCodes(cs ...codes.Code) GRPCOption {
	set := codeSet("WithAnswerCodes", cs)
	return newGRPCOption(func(c *grpccall.Options) { c.AnswerCodes = set })
}

// WithServiceConfig obeys what a gRPC service config says of hedging (gRFC A6): hedgingPolicy and retryThrottling, for all
// targets whose resolvers send none, see [Interceptor.Resolver]. The default is no config. The rest of it is gRPC's; [DialOptions] gives
// it both parts. It panics if the config is invalid.
//
// A method with a policy may be hedged, whatever its name: up to maxAttempts attempts, after each hedgingDelay. Where that is
// absent, after the learned delays; A6 says at once, which is "0s" here. A failure with one of
// nonFatalStatusCodes has the next hedge sent at once, and the delays go on from there; with any other code the primary ends the call.
// grpc-retry-pushback-ms puts the next hedge off, or forbids all further ones. What is above the config: [WithRoute], [AllowHedging],
// [WithoutHedging], SetEnabled and HEDGE_DISABLED. Budget, brakes, audit and the first ten calls hold as
// for other methods, and so does what a hedge may win with.
func WithServiceConfig(config string) GRPCOption {
	c, err := readConfig(config)
	if err != nil {
		panic(err)
	}
	return withParsedConfig(c)
}

// withParsedConfig is [WithServiceConfig] for a config that is valid.
func withParsedConfig(c *serviceconfig.Config) GRPCOption {
	return newGRPCOption(func(g *grpccall.Options) { g.ServiceConfig = c })
}

// readConfig reads a config that the program gives, in which a field that hedging policies do not have is an error. One of
// a resolver may be newer than the program.
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

// codeSet returns the codes that an option of that name was given.
func codeSet(option string, cs []codes.Code) map[codes.Code]bool {
	set := make(map[codes.Code]bool)
	for _, c := range cs {
		if c == codes.OK {
			panic("hedge: " + option + ": code is OK")
		}
		set[c] = true
	}
	return set
}
