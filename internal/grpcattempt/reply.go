// Package grpcattempt makes the parts of a gRPC call that each attempt has of its own: the context, a copy of the
// request, a reply, and copies of call options. It reports why a call cannot have several attempts. For streams, it
// holds the state that the attempts and the caller share.
package grpcattempt

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoMessageOf returns value as a message of package proto. It reports false if value is no such message or only
// embeds one, because a copy would have another type.
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

// A ReplyType creates replies that are equivalent to the caller's. It must be determined before the primary decodes
// into the caller's reply. The zero ReplyType is unknown.
type ReplyType struct {
	message protoreflect.MessageType // type of a proto.Message, including dynamic messages
	other   reflect.Type             // type that any other reply points to
	slice   bool                     // other is a slice type, and the reply is empty but not nil
}

// ReplyTypeOf returns the ReplyType of a reply, or an unknown one if a new reply would not be equivalent. The reply
// then has content that decoding may use, or embeds its message. grpc's default codec clears messages of package proto
// before it decodes, so their content does not matter.
func ReplyTypeOf(reply any, opts []grpc.CallOption) ReplyType {
	if m, ok := protoMessageOf(reply); ok {
		if m.IsValid() && (!choosesCodec(opts) || isEmptyMessage(m)) {
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

// isEmptyMessage reports whether no field of a message is set and it has no unknown fields.
func isEmptyMessage(m protoreflect.Message) bool {
	some := len(m.GetUnknown()) > 0
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		some = true
		return false
	})
	return !some
}

// IsKnown reports whether NewReply can be called. If not, the call cannot be hedged, because two attempts must not
// decode into the same reply.
func (r ReplyType) IsKnown() bool { return r.message != nil || r.other != nil }

// NewReply returns a new empty reply. The type must be known.
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

// CopyReply copies from, the reply of a hedge, to the caller's reply. The hedge and the primary must have ended.
// Afterwards, from must not be used.
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
