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

// An Obstacle is the reason why a call cannot have several attempts, and so no hedges.
type Obstacle uint8

// Obstacles. None means that the call can have several attempts. The method String describes the others.
const (
	None Obstacle = iota
	SeveralMessages
	OtherTarget
	UnknownOption
	UncloneableRequest
	UncloneableReply
)

// obstacleTexts are the results of [Obstacle.String].
var obstacleTexts = [...]string{
	SeveralMessages:    "its caller may send several messages",
	OtherTarget:        "the connections for hedges have other targets",
	UnknownOption:      "package grpc does not define one of its call options",
	UncloneableRequest: "its request cannot be copied",
	UncloneableReply:   "no equivalent reply can be created",
}

// String returns the reason as a text for log records, or "" for None.
func (o Obstacle) String() string { return obstacleTexts[o] }

// A LoggedObstacles is the set of obstacles that were already logged for a method. It prevents repeated log records.
// The zero value is the empty set. It is safe for concurrent use.
type LoggedObstacles struct{ bits atomic.Uint32 }

// Add adds o to the set. It returns true if o was not in the set, so that the caller logs o. It does not add None and
// returns false for it.
func (t *LoggedObstacles) Add(o Obstacle) bool {
	bit := uint32(1) << o
	return o != None && t.bits.Load()&bit == 0 && t.bits.Or(bit)&bit == 0
}

// A CallTemplate holds the parts of a unary call from which the request and the reply of each hedge are created.
type CallTemplate struct {
	Request   Request
	ReplyType ReplyType
}

// Fill sets p from the request, the reply and the options of a call. It returns the obstacle that prevents several
// attempts, or None. The caller must pass a zero CallTemplate.
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

// ReceiveTime is the longest time that RecvMsg usually takes to return a message that has already arrived. No hedge of
// a stream starts before this time has passed after RecvMsg was called.
const ReceiveTime = time.Millisecond

// RemainingDelays converts hedge delays that count from the start of a call to delays that count from now. The argument
// ago is the time since the start of the call.
//
// It subtracts the same duration from each delay: ago, or less if the first delay would otherwise be shorter than
// ReceiveTime. If the first delay is not longer than ReceiveTime, the delays are returned unchanged.
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

// A TypeCache caches the message types of a method, because most calls of a method have the same types. It holds the
// types of the most recent call that could have several attempts. The zero value is empty. It is safe for concurrent
// use.
type TypeCache struct{ last atomic.Pointer[messageTypes] }

// A messageTypes holds the types of a request and a reply with generated code. For these types, the obstacles depend
// only on the types and the call options, unless the program has replaced grpc's default codec.
type messageTypes struct {
	request, reply       reflect.Type
	replyMessage         protoreflect.MessageType // creates new replies
	requestContainsReply bool                     // a request may contain a message that has the type of the reply
}

// FillTemplate fills p as [CallTemplate.Fill] does, and returns the same obstacle. It is faster than Fill if request
// and reply have the cached types. The caller must pass a zero CallTemplate.
func (k *TypeCache) FillTemplate(p *CallTemplate, request, reply any, opts []grpc.CallOption) Obstacle {
	if last := k.last.Load(); last != nil && last.request == reflect.TypeOf(request) && last.reply == reflect.TypeOf(reply) &&
		!reflect.ValueOf(request).IsNil() && !reflect.ValueOf(reply).IsNil() && AreOptionsCloneable(opts) && !haveCodecOption(opts) {
		p.Request.message, p.Request.kind, p.ReplyType.message = request, protoMessage, last.replyMessage
		p.Request.sharesMemory = last.requestContainsReply || request == reply
		return None
	}
	o := p.Fill(request, reply, opts)
	if o != None || p.Request.kind != protoMessage {
		return o
	}
	_, generated := p.ReplyType.message.(*protoimpl.MessageInfo)
	generated = generated && !isDefaultCodecReplaced()
	if _, both := request.(proto.Message).ProtoReflect().Type().(*protoimpl.MessageInfo); both && generated {
		k.last.Store(&messageTypes{reflect.TypeOf(request), reflect.TypeOf(reply), p.ReplyType.message, canContain(request, reply)})
	}
	return None
}
