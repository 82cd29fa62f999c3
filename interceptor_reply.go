package hedge

import (
	"reflect"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gohedge/hedge/internal/elsewhere"
	"github.com/gohedge/hedge/internal/race"
)

// replyType makes replies of the same type as the caller's. It is taken before the
// primary starts to decode into the caller's reply.
type replyType struct {
	message protoreflect.MessageType // of a proto.Message; it knows dynamic messages, which reflect does not
	other   reflect.Type             // of any other reply that is a pointer
}

func replyTypeOf(reply any) replyType {
	if m, ok := reply.(proto.Message); ok {
		if message := m.ProtoReflect(); message.IsValid() {
			return replyType{message: message.Type()}
		}
		return replyType{}
	}
	if v := reflect.ValueOf(reply); v.Kind() == reflect.Pointer && !v.IsNil() {
		return replyType{other: v.Type().Elem()}
	}
	return replyType{}
}

// known reports whether replies can be made. If not, the call cannot be hedged: two
// attempts must not share a reply.
func (r replyType) known() bool { return r.message != nil || r.other != nil }

func (r replyType) new() any {
	if r.message != nil {
		return r.message.New().Interface()
	}
	return reflect.New(r.other).Interface()
}

// publish copies a hedge's reply into the caller's. The hedge and the primary have ended.
func publish(to, from any) {
	if to, ok := to.(proto.Message); ok {
		proto.Reset(to)
		proto.Merge(to, from.(proto.Message))
		return
	}
	// Nobody else has the hedge's reply, so that what it points to may be shared. This is
	// for messages of older generators as well: package proto cannot copy all of theirs.
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}

// copyable reports whether copyOf makes a copy of a request.
func copyable(req any) bool {
	_, ok := req.(proto.Message)
	return ok || req == nil
}

// copyOf returns a copy of a request, or the request itself if that is not known how to copy.
func copyOf(req any) any {
	if m, ok := req.(proto.Message); ok {
		return proto.Clone(m)
	}
	return req
}

// A grpcPrimary is what is handed out for the primary of a call: its context, and room for
// the options. Whoever is below may keep either, so it is in no pool.
type grpcPrimary struct {
	race.Attempt
	elsewhere.Trail
	trailer metadata.MD
	room    [2]grpc.CallOption
}

// Value finds the trail, and else what the attempt's context holds.
func (p *grpcPrimary) Value(key any) any {
	if key == (elsewhere.Key{}) {
		return &p.Trail
	}
	return p.Attempt.Value(key)
}

// options returns the caller's options, and one to get the trailer.
func (p *grpcPrimary) options(opts []grpc.CallOption) []grpc.CallOption {
	own := p.room[:0]
	if len(opts) >= len(p.room) {
		own = make([]grpc.CallOption, 0, len(opts)+1)
	}
	return slices.Clip(append(append(own, opts...), grpc.Trailer(&p.trailer)))
}

// ownTargets returns the caller's options with new targets for an attempt. Calling
// the functions in deliver copies what was received to the caller's targets.
func ownTargets(opts []grpc.CallOption) (own []grpc.CallOption, deliver []func()) {
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

// takeFinish splits off the functions that are called once, when the call ends.
func takeFinish(opts []grpc.CallOption) (rest []grpc.CallOption, finish []func(error)) {
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
