package grpcattempt

import (
	"reflect"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoimpl"
)

// sharesMemory reports whether decoding the reply of a call may write to memory of the request.
//
// grpc's default codec clears a reply with generated code and then allocates new memory. So it writes to the request
// only if the request is the reply or contains the reply. Other codecs may write to any memory that both messages refer
// to.
func sharesMemory(request, reply any, opts []grpc.CallOption) bool {
	return request == reply || choosesCodec(opts) || canContain(request, reply)
}

// canContain reports whether the request may contain a message that has the type of the reply. The result is true if
// the request or the reply has no generated code.
func canContain(request, reply any) bool {
	of, ok := request.(proto.Message)
	in, both := reply.(proto.Message)
	if !ok || !both {
		return true
	}
	from, to := of.ProtoReflect(), in.ProtoReflect()
	_, ok = from.Type().(*protoimpl.MessageInfo)
	_, both = to.Type().(*protoimpl.MessageInfo)
	return !ok || !both || containsType(from.Descriptor(), to.Descriptor().FullName(), make(map[protoreflect.FullName]bool))
}

// containsType reports whether a message of type m may contain a message of the type other, at any depth. The result is
// true if m allows extensions. The types in seen are skipped, because they were searched or are being searched.
func containsType(m protoreflect.MessageDescriptor, other protoreflect.FullName, seen map[protoreflect.FullName]bool) bool {
	if m.ExtensionRanges().Len() > 0 {
		return true
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		part := m.Fields().Get(i).Message() // of a map it is the entry
		if part == nil {
			continue
		}
		if part.FullName() == other || !seen[part.FullName()] && containsType(part, other, seen) {
			return true
		}
	}
	return false
}

// isDefaultCodecReplaced reports whether the program has replaced grpc's default codec, by registering another codec with the
// name "proto". The result is cached, because codecs must be registered before main starts.
var isDefaultCodecReplaced = sync.OnceValue(func() bool { return !isGRPCCodec(encoding.GetCodecV2("proto")) })

// isGRPCCodec reports whether codec is grpc's own codec for messages of package proto.
func isGRPCCodec(codec encoding.CodecV2) bool {
	t := reflect.TypeOf(codec)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t != nil && t.PkgPath() == "google.golang.org/grpc/encoding/proto"
}
