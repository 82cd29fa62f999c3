package grpcattempt

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// OwnTargets returns the caller's options with new targets for an attempt. Calling
// the functions in deliver copies what was received to the caller's targets.
func OwnTargets(opts []grpc.CallOption) (own []grpc.CallOption, deliver []func()) {
	own = make([]grpc.CallOption, 0, len(opts)+1) // room for one more
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			md := new(metadata.MD)
			deliver = append(deliver, func() { *o.HeaderAddr = *md })
			own = append(own, grpc.Header(md))
		case grpc.TrailerCallOption:
			md := new(metadata.MD)
			deliver = append(deliver, func() { *o.TrailerAddr = *md })
			own = append(own, grpc.Trailer(md))
		case grpc.PeerCallOption:
			p := new(peer.Peer)
			deliver = append(deliver, func() { *o.PeerAddr = *p })
			own = append(own, grpc.Peer(p))
		default:
			own = append(own, o)
		}
	}
	return own, deliver
}

// TakeFinish splits off the functions that are called once, when the call ends.
func TakeFinish(opts []grpc.CallOption) (rest []grpc.CallOption, finish []func(error)) {
	rest = opts
	for i, o := range opts {
		f, ok := o.(grpc.OnFinishCallOption)
		if ok && finish == nil {
			rest = slices.Clone(opts[:i])
		}
		switch {
		case ok:
			finish = append(finish, f.OnFinish)
		case finish != nil:
			rest = append(rest, o)
		}
	}
	return rest, finish
}
