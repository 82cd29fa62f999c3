// Package grpcattempt makes the parts of a gRPC call that each attempt has for itself: a context, a copy of the request, a reply, and targets of call
// options. It reports the obstacles to that. For streams it holds the state that the attempts and the caller share: the choice of the attempt that
// becomes the call, and the request.
package grpcattempt

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoMessageOf returns the message of package proto that a value is. It reports false if the value is not one, or only embeds one: a copy would
// have another type.
func protoMessageOf(value any) (m protoreflect.Message, ok bool) {
	defer func() {
		if recover() != nil { // of an embedded message that is nil
			m, ok = nil, false
		}
	}()
	message, ok := value.(proto.Message)
	if !ok {
		return nil, false
	}
	m = message.ProtoReflect()
	return m, reflect.TypeOf(m.Interface()) == reflect.TypeOf(value)
}

// A ReplyType makes replies of the type of the caller's reply. It is determined before the primary decodes into that reply.
type ReplyType struct {
	message protoreflect.MessageType // of a proto.Message; it knows dynamic messages, which reflect does not
	other   reflect.Type             // of any other reply that is a pointer
	slice   bool                     // other is a slice, which is empty and not nil
}

// ReplyTypeOf returns the type of the reply of a call with the options. It is unknown if a new reply would not be equivalent to the caller's: that
// one has content which decoding may use, or embeds its message. The default codec of grpc empties messages of package proto before it decodes.
func ReplyTypeOf(reply any, opts []grpc.CallOption) ReplyType {
	if m, ok := protoMessageOf(reply); ok {
		if m.IsValid() && (!choosesCodec(opts) || isEmpty(m)) {
			return ReplyType{message: m.Type()}
		}
		return ReplyType{}
	}
	if _, ok := reply.(proto.Message); ok {
		return ReplyType{}
	}
	v := reflect.ValueOf(reply)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return ReplyType{}
	}
	switch v = v.Elem(); {
	case v.IsZero():
		return ReplyType{other: v.Type()}
	case v.Kind() == reflect.Slice && v.Cap() == 0: // such as mem.BufferSlice{}; it has no memory to write to
		return ReplyType{other: v.Type(), slice: true}
	}
	return ReplyType{}
}

// isEmpty reports whether a message has no content.
func isEmpty(m protoreflect.Message) bool {
	some := len(m.GetUnknown()) > 0
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		some = true
		return false
	})
	return !some
}

// IsKnown reports whether NewReply can make replies. If not, the call cannot be hedged: two attempts must not share a reply.
func (r ReplyType) IsKnown() bool { return r.message != nil || r.other != nil }

// NewReply makes a reply. The type must be known.
func (r ReplyType) NewReply() any {
	if r.message != nil {
		return r.message.New().Interface()
	}
	reply := reflect.New(r.other)
	if r.slice {
		reply.Elem().Set(reflect.MakeSlice(r.other, 0, 0))
	}
	return reply.Interface()
}

// CopyReply copies the reply of a hedge to the reply of the caller. The hedge and the primary have ended.
func CopyReply(to, from any) {
	if to, ok := to.(proto.Message); ok {
		proto.Reset(to)
		proto.Merge(to, from.(proto.Message))
		return
	}
	// Only the hedge has its reply, so both replies may share the memory that it points to. This is
	// for messages of older generators as well: package proto cannot copy all of theirs.
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}
