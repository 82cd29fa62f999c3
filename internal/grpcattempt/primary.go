package grpcattempt

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/race"
)

// A Primary holds the context of a primary and memory for its options. An interceptor below may keep either, so a Primary is in no pool.
type Primary struct {
	race.Attempt
	hedgebalancer.PrimaryPick
	Trailer      metadata.MD // received; written by the goroutine of the attempt
	optionBuffer [2]grpc.CallOption
}

// Value returns the trail of hedge_elsewhere, or a value of the context of the attempt.
func (p *Primary) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &p.PrimaryPick
	}
	return p.Attempt.Value(key)
}

// Options returns the options of the caller and an option for the trailer.
func (p *Primary) Options(opts []grpc.CallOption) []grpc.CallOption {
	own := p.optionBuffer[:0]
	if len(opts) >= len(p.optionBuffer) {
		own = make([]grpc.CallOption, 0, len(opts)+1)
	}
	return slices.Clip(append(append(own, opts...), grpc.Trailer(&p.Trailer)))
}

// An Origin is the context of a primary that starts before its race, as the primary of a stream does.
type Origin struct {
	race.PrimaryContext
	hedgebalancer.PrimaryPick
}

// Value returns the trail of hedge_elsewhere, or a value of the context of the attempt.
func (o *Origin) Value(key any) any {
	if key == (hedgebalancer.ContextKey{}) {
		return &o.PrimaryPick
	}
	return o.PrimaryContext.Value(key)
}
