// Package grpcattempt creates the parts of a gRPC call that differ between its attempts. These are the context, a copy
// of the request, a new reply, and copies of call options. It also reports why a call cannot have several attempts. For
// streams, it holds state that the attempts and the caller share.
package grpcattempt

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoMessageOf returns value as a message of package proto. The result ok is false if value is not such a message. It
// is also false if value only embeds a message, because a copy would have the type of the embedded message.
func protoMessageOf(value any) (m protoreflect.Message, ok bool) {
	defer func() {
		if recover() != nil { // the embedded message is nil
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

// A ReplyType creates new replies that are equivalent to the caller's reply. It must be determined before the primary
// decodes into the caller's reply. The zero ReplyType means that no equivalent reply can be created.
type ReplyType struct {
	message protoreflect.MessageType // type of a reply that is a [proto.Message], including dynamic messages
	other   reflect.Type             // type that a reply of any other type points to
	slice   bool                     // other is a slice type, and the caller's reply is an empty slice that is not nil
}

// ReplyTypeOf returns the ReplyType of reply, the caller's reply of a call with the options opts. It returns the zero
// ReplyType if a hedge could not decode into a new reply with the same result. That is so if reply has content that
// decoding may use, or embeds its message.
//
// With grpc's default codec, a message of package proto may have content, because the codec clears it before it
// decodes.
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
	case v.Kind() == reflect.Slice && v.Cap() == 0: // such as mem.BufferSlice{}; the slice has no memory to write to
		return ReplyType{other: v.Type(), slice: true}
	}
	return ReplyType{}
}

// isEmptyMessage reports whether a message has no fields that are set, and no unknown fields.
func isEmptyMessage(m protoreflect.Message) bool {
	some := len(m.GetUnknown()) > 0
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		some = true
		return false
	})
	return !some
}

// IsKnown reports whether NewReply can create replies. If not, the call cannot be hedged, because two attempts must not
// decode into the same reply.
func (r ReplyType) IsKnown() bool { return r.message != nil || r.other != nil }

// NewReply returns a new empty reply. It must only be called if IsKnown returns true.
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

// CopyReply copies from, the reply of a hedge, to the caller's reply. It must only be called after the hedge and the
// primary have ended. The caller must not use from afterwards, because both replies may share memory.
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
