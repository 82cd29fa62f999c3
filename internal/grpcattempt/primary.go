package grpcattempt

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// A Primary holds the context of a primary and memory for its call options. It is never reused, because an interceptor
// may keep either.
type Primary struct {
	race.Attempt
	hedgebalancer.PrimaryPick
	Trailer      metadata.MD // the trailer of the attempt, valid after its end
	optionBuffer [2]grpc.CallOption
}

// Value returns the [hedgebalancer.PrimaryPick] for the balancer hedge_elsewhere, or a value of the attempt.
func (p *Primary) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &p.PrimaryPick
	}
	return p.Attempt.Value(key)
}

// Options returns the caller's options followed by an option that stores the trailer in p.
func (p *Primary) Options(opts []grpc.CallOption) []grpc.CallOption {
	own := p.optionBuffer[:0]
	if len(opts) >= len(p.optionBuffer) {
		own = make([]grpc.CallOption, 0, len(opts)+1)
	}
	return slices.Clip(append(append(own, opts...), grpc.Trailer(&p.Trailer)))
}

// A StreamPrimary is the context of a stream's primary, which starts before its race.
type StreamPrimary struct {
	race.PrimaryContext
	hedgebalancer.PrimaryPick
}

// Value returns the [hedgebalancer.PrimaryPick] for the balancer hedge_elsewhere, or a value of the attempt.
func (o *StreamPrimary) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &o.PrimaryPick
	}
	return o.PrimaryContext.Value(key)
}
