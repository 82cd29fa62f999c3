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

// An Obstacle is the reason for which a call cannot have several attempts.
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

// String returns a text for logs.
func (o Obstacle) String() string { return obstacles[o] }

// LoggedObstacles is the set of obstacles that were logged. The zero value is the empty set. It is safe for concurrent use.
type LoggedObstacles struct{ bits atomic.Uint32 }

// First adds an obstacle, and reports whether it is new. It reports false for None.
func (t *LoggedObstacles) First(o Obstacle) bool {
	bit := uint32(1) << o
	return o != None && t.bits.Load()&bit == 0 && t.bits.Or(bit)&bit == 0
}

// CallTemplate are the parts of a call of which each attempt has a copy.
type CallTemplate struct {
	Request   Request
	ReplyType ReplyType
}

// FromCall sets p, which is zero, to the parts of a unary call. It returns the obstacle to several attempts, or None.
func (p *CallTemplate) FromCall(request, reply any, opts []grpc.CallOption) Obstacle {
	if !AreOptionsCloneable(opts) {
		return SharedOption
	}
	if p.Request = RequestOf(request); !p.Request.IsCloneable() {
		return WholeRequest
	}
	if p.ReplyType = ReplyTypeOf(reply, opts); !p.ReplyType.IsKnown() {
		return WholeReply
	}
	p.Request.sharesMemory = sharesMemory(request, reply, opts)
	return None
}

// ReceiveTime is the longest time that RecvMsg takes for a message that has arrived. No hedge of a stream is due earlier.
const ReceiveTime = time.Millisecond

// RemainingDelays returns the delays of a call that began the given time ago, counted from now.
func RemainingDelays(delays []time.Duration, ago time.Duration) []time.Duration {
	if len(delays) == 0 {
		return nil
	}
	passed := min(ago, delays[0]-ReceiveTime)
	if passed <= 0 {
		return delays
	}
	left := make([]time.Duration, len(delays))
	for i, d := range delays {
		left[i] = d - passed
	}
	return left
}

// TypeCache holds the message types of the last call of a method that could have several attempts: most calls of a method have the same types. The zero
// TypeCache holds none. It is safe for concurrent use.
type TypeCache struct{ last atomic.Pointer[messageTypes] }

// messageTypes are generated types of messages, for which the types alone decide about obstacles.
type messageTypes struct {
	request, reply reflect.Type
	made           protoreflect.MessageType // by which replies are made
	nested         bool                     // a request can contain a reply
}

// FillTemplate is [CallTemplate.FromCall] for p, which is zero. It is cheaper for messages of the types in k.
func (k *TypeCache) FillTemplate(p *CallTemplate, request, reply any, opts []grpc.CallOption) Obstacle {
	if last := k.last.Load(); last != nil && last.request == reflect.TypeOf(request) && last.reply == reflect.TypeOf(reply) &&
		!reflect.ValueOf(request).IsNil() && !reflect.ValueOf(reply).IsNil() && AreOptionsCloneable(opts) && !choosesCodec(opts) {
		p.Request.message, p.Request.kind, p.ReplyType.message = request, protobuf, last.made
		p.Request.sharesMemory = last.nested || request == reply
		return None
	}
	o := p.FromCall(request, reply, opts)
	if o != None || p.Request.kind != protobuf {
		return o
	}
	_, generated := p.ReplyType.message.(*protoimpl.MessageInfo)
	if _, both := request.(proto.Message).ProtoReflect().Type().(*protoimpl.MessageInfo); both && generated {
		k.last.Store(&messageTypes{reflect.TypeOf(request), reflect.TypeOf(reply), p.ReplyType.message, canContain(request, reply)})
	}
	return None
}
