package grpcattempt

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// A Primary holds the context of a unary call's primary, and memory for the primary's call options. It is never reused,
// because an interceptor may keep the context or the options.
type Primary struct {
	race.Attempt
	hedgebalancer.PrimaryPick
	Trailer      metadata.MD        // trailer of the attempt; valid after the attempt has ended
	optionBuffer [2]grpc.CallOption // memory for the options, to save an allocation
}

// Value returns the value of the primary's context for the key. For [hedgebalancer.ContextKey], by which the balancer
// hedge_elsewhere recognises primaries, it returns the PrimaryPick of p.
func (p *Primary) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &p.PrimaryPick
	}
	return p.Attempt.Value(key)
}

// CallOptions returns the call options of the primary: the caller's options opts, and an option that stores the trailer in
// p.Trailer.
func (p *Primary) CallOptions(opts []grpc.CallOption) []grpc.CallOption {
	own := p.optionBuffer[:0]
	if len(opts) >= len(p.optionBuffer) {
		own = make([]grpc.CallOption, 0, len(opts)+1)
	}
	return slices.Clip(append(append(own, opts...), grpc.Trailer(&p.Trailer)))
}

// A StreamPrimaryContext is the context of the primary of a stream call. The primary's stream is opened with it before
// the race between the attempts begins.
type StreamPrimaryContext struct {
	race.PrimaryContext
	hedgebalancer.PrimaryPick
}

// Value returns the value of the primary's context for the key. For [hedgebalancer.ContextKey], by which the balancer
// hedge_elsewhere recognises primaries, it returns the PrimaryPick of o.
func (o *StreamPrimaryContext) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &o.PrimaryPick
	}
	return o.PrimaryContext.Value(key)
}
