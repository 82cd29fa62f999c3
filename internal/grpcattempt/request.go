package grpcattempt

import (
	"reflect"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Request is the request of a call, from which hedges get copies. The zero Request cannot be copied.
type Request struct {
	message      any
	kind         requestKind
	sharesMemory bool // decoding the reply may write to the message
	isEncoded    bool // encoded holds the message as it was; otherwise hedges copy it when they are due
	encoded      []byte
}

type requestKind int

const (
	notCloneable requestKind = iota
	constant                 // a nil
	protobuf                 // a message of package proto
	older                    // a message of another generator, which encodes itself
	prepared                 // a *grpc.PreparedMsg
)

// An olderMessage is a message of gogo/protobuf and similar generators. Package proto cannot copy all of them.
type olderMessage interface {
	ProtoMessage()
	Reset()
	String() string
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// RequestOf returns the Request of a message.
func RequestOf(message any) Request { return Request{message: message, kind: requestKindOf(message)} }

func requestKindOf(message any) requestKind {
	switch p, ok := message.(*grpc.PreparedMsg); {
	case message == nil:
		return constant
	case ok && p != nil:
		return prepared
	}
	if m, ok := protoMessageOf(message); ok {
		if !m.IsValid() {
			return constant
		}
		return protobuf
	}
	if _, ok := message.(proto.Message); ok {
		return notCloneable
	}
	if _, ok := message.(olderMessage); ok && isGeneratedType(reflect.TypeOf(message)) {
		if reflect.ValueOf(message).IsNil() {
			return constant
		}
		return older
	}
	return notCloneable
}

// isGeneratedType reports whether t points to a struct that embeds nothing, so that its methods are its own.
func isGeneratedType(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return false
	}
	for i := range t.Elem().NumField() {
		if t.Elem().Field(i).Anonymous {
			return false
		}
	}
	return true
}

// IsCloneable reports whether hedges can have an equal request of the same type.
func (r *Request) IsCloneable() bool { return r.kind != notCloneable }

// Encode encodes the message, from which hedges are then decoded, because the message may be changed while they run. It may use the memory of buffer,
// and returns memory for the next call. A message that cannot be encoded is not divisible afterwards. It is cheaper than a clone, and most calls need
// neither.
func (r *Request) Encode(buffer []byte) []byte {
	var err error
	switch r.kind {
	case protobuf:
		r.encoded, err = proto.MarshalOptions{AllowPartial: true}.MarshalAppend(buffer[:0], r.message.(proto.Message))
		buffer = r.encoded
	case older:
		r.encoded, err = r.message.(olderMessage).Marshal()
	case prepared:
		r.message = copyPrepared(r.message)
	}
	if r.isEncoded = err == nil; !r.isEncoded {
		r.kind = notCloneable
	}
	return buffer
}

// Copy returns a copy of the message, or false if it cannot be copied.
func (r *Request) Copy() (message any, ok bool) {
	switch {
	case r.kind == constant:
		return r.message, true
	case r.kind == protobuf && !r.isEncoded:
		return proto.Clone(r.message.(proto.Message)), true
	case r.kind == protobuf:
		m := r.message.(proto.Message).ProtoReflect().Type().New().Interface()
		return m, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(r.encoded, m) == nil
	case r.kind == older && r.isEncoded:
		m := reflect.New(reflect.TypeOf(r.message).Elem()).Interface().(olderMessage)
		return m, m.Unmarshal(r.encoded) == nil
	case r.kind == prepared:
		return copyPrepared(r.message), true
	}
	return nil, false
}

// copyPrepared copies a *grpc.PreparedMsg. Encode replaces the bytes of a PreparedMsg and never writes to them, so copies share them.
func copyPrepared(message any) any {
	copied := *message.(*grpc.PreparedMsg)
	return &copied
}

// NeedsEncoding reports whether the message must be encoded before the primary starts. Either the reply may share memory with it,
// or its own encoding may write to it, which two attempts must not do at once.
func (r *Request) NeedsEncoding() bool {
	return r.kind == older || r.kind == prepared || r.sharesMemory
}

// IsPrepared reports whether the message is a [grpc.PreparedMsg]: it is encoded for the codec and the compressor of one connection.
func (r *Request) IsPrepared() bool { return r.kind == prepared }

// A grpcFunction identifies a function of package grpc by its code address.
type grpcFunction struct {
	name       string
	own, other atomic.Uintptr // the function, and the last one that was not it; 0: none yet
}

var (
	invokes = grpcFunction{name: "google.golang.org/grpc.invoke"}
	streams = grpcFunction{name: "google.golang.org/grpc.newClientStream"}
)

// IsGRPCInvoker reports whether f is the function of package grpc that makes unary calls. Any other function belongs to an interceptor below, which
// may change the request. If grpc renames its function, no invoker is recognised.
func IsGRPCInvoker(f grpc.UnaryInvoker) bool { return invokes.matches(reflect.ValueOf(f).Pointer()) }

// IsGRPCStreamer is [IsGRPCInvoker] for streams.
func IsGRPCStreamer(f grpc.Streamer) bool { return streams.matches(reflect.ValueOf(f).Pointer()) }

func (m *grpcFunction) matches(pc uintptr) bool {
	switch pc {
	case m.own.Load():
		return pc != 0
	case m.other.Load():
		return false
	}
	f := runtime.FuncForPC(pc)
	if f == nil || f.Name() != m.name || f.Entry() != pc {
		m.other.Store(pc)
		return false
	}
	m.own.Store(pc)
	return true
}
