package grpcattempt

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gohedge/hedge/internal/elsewhere"
	"github.com/gohedge/hedge/internal/race"
)

// A Primary is what is handed out for the primary of a call: its context, and room for
// the options. Whoever is below may keep either, so it is in no pool.
type Primary struct {
	race.Attempt
	elsewhere.Trail
	Trailer metadata.MD // received; written by whoever makes the attempt
	room    [2]grpc.CallOption
}

// Value finds the trail, and else what the attempt's context holds.
func (p *Primary) Value(key any) any {
	if key == (elsewhere.Key{}) {
		return &p.Trail
	}
	return p.Attempt.Value(key)
}

// Options returns the caller's options, and one to get the trailer.
func (p *Primary) Options(opts []grpc.CallOption) []grpc.CallOption {
	own := p.room[:0]
	if len(opts) >= len(p.room) {
		own = make([]grpc.CallOption, 0, len(opts)+1)
	}
	return slices.Clip(append(append(own, opts...), grpc.Trailer(&p.Trailer)))
}

// An Origin is the context of a primary that begins before its race does, as that of a stream.
type Origin struct {
	race.Origin
	elsewhere.Trail
}

// Value finds the trail, and else what the attempt's context holds.
func (o *Origin) Value(key any) any {
	if key == (elsewhere.Key{}) {
		return &o.Trail
	}
	return o.Origin.Value(key)
}
