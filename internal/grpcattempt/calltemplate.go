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

// An Obstacle is the reason why a call cannot have several attempts.
type Obstacle uint8

// Obstacles. None means that the call can have several attempts.
const (
	None Obstacle = iota
	SeveralMessages
	OtherTarget
	UnknownOption
	UncloneableRequest
	UncloneableReply
)

var obstacleTexts = [...]string{
	SeveralMessages:    "its caller may send several messages",
	OtherTarget:        "the connections for hedges have other targets",
	UnknownOption:      "package grpc does not define one of its call options",
	UncloneableRequest: "its request cannot be copied",
	UncloneableReply:   "no equivalent reply can be created",
}

// String returns the reason as a text for log records. It is "" for None.
func (o Obstacle) String() string { return obstacleTexts[o] }

// A LoggedObstacles is a set of obstacles that were logged. The zero value is the empty set. It is safe for concurrent
// use.
type LoggedObstacles struct{ bits atomic.Uint32 }

// Add adds o to the set, and reports whether o was not in it. It ignores None and reports false.
func (t *LoggedObstacles) Add(o Obstacle) bool {
	bit := uint32(1) << o
	return o != None && t.bits.Load()&bit == 0 && t.bits.Or(bit)&bit == 0
}

// A CallTemplate holds the parts of a unary call that each attempt gets a copy of.
type CallTemplate struct {
	Request   Request
	ReplyType ReplyType
}

// Fill sets p, which must be zero, from the request, the reply and the options of a call. It returns the obstacle to
// several attempts, or None.
func (p *CallTemplate) Fill(request, reply any, opts []grpc.CallOption) Obstacle {
	if !AreOptionsCloneable(opts) {
		return UnknownOption
	}
	if p.Request = RequestOf(request); !p.Request.IsCloneable() {
		return UncloneableRequest
	}
	if p.ReplyType = ReplyTypeOf(reply, opts); !p.ReplyType.IsKnown() {
		return UncloneableReply
	}
	p.Request.sharesMemory = sharesMemory(request, reply, opts)
	return None
}

// ReceiveTime is the longest time that RecvMsg takes for a message that has arrived. No hedge of a stream starts
// earlier.
const ReceiveTime = time.Millisecond

// RemainingDelays returns the delays of a call, measured from now; the call began the time ago before now. The first
// remaining delay is at least ReceiveTime.
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

// A TypeCache holds the message types of the last call of a method that could have several attempts. Most calls of a
// method have the same types. The zero value is empty. It is safe for concurrent use.
type TypeCache struct{ last atomic.Pointer[messageTypes] }

// A messageTypes holds the types of a request and a reply with generated code. For such types, the obstacles depend on
// the types alone.
type messageTypes struct {
	request, reply       reflect.Type
	replyMessage         protoreflect.MessageType // makes new replies
	requestContainsReply bool                     // a request may contain a message of the reply's type
}

// FillTemplate does the same as [CallTemplate.Fill] for p, which must be zero. It is cheaper if the messages have the
// types in k.
func (k *TypeCache) FillTemplate(p *CallTemplate, request, reply any, opts []grpc.CallOption) Obstacle {
	if last := k.last.Load(); last != nil && last.request == reflect.TypeOf(request) && last.reply == reflect.TypeOf(reply) &&
		!reflect.ValueOf(request).IsNil() && !reflect.ValueOf(reply).IsNil() && AreOptionsCloneable(opts) && !choosesCodec(opts) {
		p.Request.message, p.Request.kind, p.ReplyType.message = request, protoMessage, last.replyMessage
		p.Request.sharesMemory = last.requestContainsReply || request == reply
		return None
	}
	o := p.Fill(request, reply, opts)
	if o != None || p.Request.kind != protoMessage {
		return o
	}
	_, generated := p.ReplyType.message.(*protoimpl.MessageInfo)
	if _, both := request.(proto.Message).ProtoReflect().Type().(*protoimpl.MessageInfo); both && generated {
		k.last.Store(&messageTypes{reflect.TypeOf(request), reflect.TypeOf(reply), p.ReplyType.message, canContain(request, reply)})
	}
	return None
}
