package grpcattempt

import (
	"reflect"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"
)

// An Obstacle is why a call cannot be divided among attempts.
type Obstacle uint8

// The obstacles.
const (
	None Obstacle = iota
	SeveralMessages
	OtherTarget
	SharedOption
	WholeRequest
	WholeReply
)

var obstacles = [...]string{
	SeveralMessages: "its caller may send several messages",
	OtherTarget:     "the connections for hedges are for other targets",
	SharedOption:    "a call option is not known to grpc",
	WholeRequest:    "a copy of its request would not be the same",
	WholeReply:      "another reply would not be the same as the caller's",
}

// String returns the obstacle in words, for logs.
func (o Obstacle) String() string { return obstacles[o] }

// Told are the obstacles that a log has been told of. The zero Told are none.
type Told struct{ bits atomic.Uint32 }

// First reports whether it is called for an obstacle for the first time. It never is for None.
func (t *Told) First(o Obstacle) bool {
	bit := uint32(1) << o
	return o != None && t.bits.Load()&bit == 0 && t.bits.Or(bit)&bit == 0
}

// Parts are what attempts have copies of.
type Parts struct {
	Request   Request
	ReplyType ReplyType
}

// Divide makes p, which is zero, the parts of a unary call, and returns what keeps it from being divided among attempts.
func (p *Parts) Divide(request, reply any, opts []grpc.CallOption) Obstacle {
	if !Divisible(opts) {
		return SharedOption
	}
	if p.Request = RequestOf(request); !p.Request.Divisible() {
		return WholeRequest
	}
	if p.ReplyType = ReplyTypeOf(reply, opts); !p.ReplyType.Known() {
		return WholeReply
	}
	p.Request.shared = sharesMemory(request, reply, opts)
	return None
}

// Look is how long it takes at most to receive a message that is there. No hedge of a stream is due before.
const Look = time.Millisecond

// Sooner returns the delays of a call that began so long ago, from now on.
func Sooner(delays []time.Duration, ago time.Duration) []time.Duration {
	if len(delays) == 0 {
		return nil
	}
	passed := min(ago, delays[0]-Look)
	if passed <= 0 {
		return delays
	}
	left := make([]time.Duration, len(delays))
	for i, d := range delays {
		left[i] = d - passed
	}
	return left
}

// Known are the types of the last messages of a method that could be divided: most calls of it have the same. The zero
// Known are none. It is safe for concurrent use.
type Known struct{ last atomic.Pointer[messageTypes] }

// messageTypes are types that generated code has, which say all there is to know.
type messageTypes struct {
	request, reply reflect.Type
	made           protoreflect.MessageType // by which replies are made
	nested         bool                     // a request can contain a reply
}

// Divide is [Parts.Divide] of p, which is zero. It costs less for messages of the types that were divided last.
func (k *Known) Divide(p *Parts, request, reply any, opts []grpc.CallOption) Obstacle {
	if last := k.last.Load(); last != nil && last.request == reflect.TypeOf(request) && last.reply == reflect.TypeOf(reply) &&
		!reflect.ValueOf(request).IsNil() && !reflect.ValueOf(reply).IsNil() && Divisible(opts) && !chooseCodec(opts) {
		p.Request.message, p.Request.kind, p.ReplyType.message = request, protobuf, last.made
		p.Request.shared = last.nested || request == reply
		return None
	}
	o := p.Divide(request, reply, opts)
	if o != None || p.Request.kind != protobuf {
		return o
	}
	_, generated := p.ReplyType.message.(*protoimpl.MessageInfo)
	if _, both := request.(proto.Message).ProtoReflect().Type().(*protoimpl.MessageInfo); both && generated {
		k.last.Store(&messageTypes{reflect.TypeOf(request), reflect.TypeOf(reply), p.ReplyType.message, canContain(request, reply)})
	}
	return None
}
