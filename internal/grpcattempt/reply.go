// Package grpcattempt gives every attempt of a gRPC call what is its own: a context, a copy of the
// request, a reply, and targets of call options. Attempts share none of these, and it says what cannot
// be divided. For streams it has what attempts and the caller do share: which attempt is the call, and
// what was sent.
package grpcattempt

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// reflected returns the message that a value is. It reports false if the value is none, or only
// embeds one: what is made of the message is then of another type.
func reflected(value any) (m protoreflect.Message, ok bool) {
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

// A ReplyType makes replies of the same type as the caller's. It is taken before the
// primary starts to decode into the caller's reply.
type ReplyType struct {
	message protoreflect.MessageType // of a proto.Message; it knows dynamic messages, which reflect does not
	other   reflect.Type             // of any other reply that is a pointer
	slice   bool                     // other is a slice, which is empty and not nil
}

// ReplyTypeOf returns the type of the reply of a call with the options. It is not known if a reply of that type is not the
// same as the caller's: the caller's has content that decoding may use, or embeds its message. Messages
// of package proto are emptied when grpc's own codec decodes them.
func ReplyTypeOf(reply any, opts []grpc.CallOption) ReplyType {
	if m, ok := reflected(reply); ok {
		if m.IsValid() && (!chooseCodec(opts) || empty(m)) {
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
	case v.Kind() == reflect.Slice && v.Cap() == 0: // such as mem.BufferSlice{}; nobody can write to its memory
		return ReplyType{other: v.Type(), slice: true}
	}
	return ReplyType{}
}

// empty reports whether a message has no content.
func empty(m protoreflect.Message) bool {
	some := len(m.GetUnknown()) > 0
	m.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		some = true
		return false
	})
	return !some
}

// Known reports whether replies can be made. If not, the call cannot be hedged: two
// attempts must not share a reply.
func (r ReplyType) Known() bool { return r.message != nil || r.other != nil }

// New makes a reply. The type is known.
func (r ReplyType) New() any {
	if r.message != nil {
		return r.message.New().Interface()
	}
	reply := reflect.New(r.other)
	if r.slice {
		reply.Elem().Set(reflect.MakeSlice(r.other, 0, 0))
	}
	return reply.Interface()
}

// Publish copies a hedge's reply into the caller's. The hedge and the primary have ended.
func Publish(to, from any) {
	if to, ok := to.(proto.Message); ok {
		proto.Reset(to)
		proto.Merge(to, from.(proto.Message))
		return
	}
	// Nobody else has the hedge's reply, so that what it points to may be shared. This is
	// for messages of older generators as well: package proto cannot copy all of theirs.
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from).Elem())
}
