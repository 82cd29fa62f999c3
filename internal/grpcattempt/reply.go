// Package grpcattempt gives every attempt of a gRPC call what is its own: a context, a copy of the
// request, a reply, and targets of call options. Attempts share none of these. For streams it has
// what attempts and the caller do share: which attempt is the call, and what was sent.
package grpcattempt

import (
	"reflect"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A ReplyType makes replies of the same type as the caller's. It is taken before the
// primary starts to decode into the caller's reply.
type ReplyType struct {
	message protoreflect.MessageType // of a proto.Message; it knows dynamic messages, which reflect does not
	other   reflect.Type             // of any other reply that is a pointer
}

// ReplyTypeOf returns the type of a caller's reply.
func ReplyTypeOf(reply any) ReplyType {
	if m, ok := reply.(proto.Message); ok {
		if message := m.ProtoReflect(); message.IsValid() {
			return ReplyType{message: message.Type()}
		}
		return ReplyType{}
	}
	if v := reflect.ValueOf(reply); v.Kind() == reflect.Pointer && !v.IsNil() {
		return ReplyType{other: v.Type().Elem()}
	}
	return ReplyType{}
}

// Known reports whether replies can be made. If not, the call cannot be hedged: two
// attempts must not share a reply.
func (r ReplyType) Known() bool { return r.message != nil || r.other != nil }

// New makes a reply. The type is known.
func (r ReplyType) New() any {
	if r.message != nil {
		return r.message.New().Interface()
	}
	return reflect.New(r.other).Interface()
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

// Copyable reports whether CopyOf makes a copy of a request.
func Copyable(req any) bool {
	_, ok := req.(proto.Message)
	return ok || req == nil
}

// CopyOf returns a copy of a request, or the request itself if that is not known how to copy.
func CopyOf(req any) any {
	if m, ok := req.(proto.Message); ok {
		return proto.Clone(m)
	}
	return req
}
