package grpcattempt

import (
	"reflect"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Request holds the request message of a call, of which hedges get copies. The zero Request is not cloneable.
type Request struct {
	message      any
	kind         requestKind
	sharesMemory bool // decoding the reply may write to the message
	isEncoded    bool // encoded holds the message; otherwise Copy clones the message itself
	encoded      []byte
}

type requestKind int

const (
	notCloneable requestKind = iota
	nilMessage               // nil, or a nil pointer to a message
	protoMessage             // a message of package proto
	legacy                   // a legacyMessage
	preparedMsg              // a *grpc.PreparedMsg
)

// A legacyMessage is a message of gogo/protobuf or a similar generator, which has methods to encode itself. Package
// proto cannot copy all such messages.
type legacyMessage interface {
	ProtoMessage()
	Reset()
	String() string
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// RequestOf returns the Request of a message, which may be of any type.
func RequestOf(message any) Request { return Request{message: message, kind: requestKindOf(message)} }

func requestKindOf(message any) requestKind {
	switch p, ok := message.(*grpc.PreparedMsg); {
	case message == nil:
		return nilMessage
	case ok && p != nil:
		return preparedMsg
	}
	if m, ok := protoMessageOf(message); ok {
		if !m.IsValid() {
			return nilMessage
		}
		return protoMessage
	}
	if _, ok := message.(proto.Message); ok {
		return notCloneable
	}
	if _, ok := message.(legacyMessage); ok && isGeneratedType(reflect.TypeOf(message)) {
		if reflect.ValueOf(message).IsNil() {
			return nilMessage
		}
		return legacy
	}
	return notCloneable
}

// isGeneratedType reports whether t is a pointer to a struct without embedded fields. The methods of t are then its
// own.
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

// IsCloneable reports whether hedges can get an equal message of the same type.
func (r *Request) IsCloneable() bool { return r.kind != notCloneable }

// Encode encodes the message, so that later copies show it as it is now although the caller may change it. It uses the
// memory of buffer if it can, and returns memory for another call of Encode. If encoding fails, the Request is no
// longer cloneable. Most calls need no Encode; if they do, it is cheaper than a clone.
func (r *Request) Encode(buffer []byte) []byte {
	var err error
	switch r.kind {
	case protoMessage:
		r.encoded, err = proto.MarshalOptions{AllowPartial: true}.MarshalAppend(buffer[:0], r.message.(proto.Message))
		buffer = r.encoded
	case legacy:
		r.encoded, err = r.message.(legacyMessage).Marshal()
	case preparedMsg:
		r.message = copyPrepared(r.message)
	}
	if r.isEncoded = err == nil; !r.isEncoded {
		r.kind = notCloneable
	}
	return buffer
}

// Copy returns a copy of the message. It reports false if the message cannot be copied.
func (r *Request) Copy() (message any, ok bool) {
	switch {
	case r.kind == nilMessage:
		return r.message, true
	case r.kind == protoMessage && !r.isEncoded:
		return proto.Clone(r.message.(proto.Message)), true
	case r.kind == protoMessage:
		m := r.message.(proto.Message).ProtoReflect().Type().New().Interface()
		return m, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(r.encoded, m) == nil
	case r.kind == legacy && r.isEncoded:
		m := reflect.New(reflect.TypeOf(r.message).Elem()).Interface().(legacyMessage)
		return m, m.Unmarshal(r.encoded) == nil
	case r.kind == preparedMsg:
		return copyPrepared(r.message), true
	}
	return nil, false
}

// copyPrepared returns a copy of a *grpc.PreparedMsg. Copies share its encoded bytes, which package grpc replaces and
// never changes.
func copyPrepared(message any) any {
	copied := *message.(*grpc.PreparedMsg)
	return &copied
}

// NeedsEncoding reports whether Encode must be called before the primary starts. Either the reply may share memory with
// the message, or encoding writes to the message, which two attempts must not do concurrently.
func (r *Request) NeedsEncoding() bool {
	return r.kind == legacy || r.kind == preparedMsg || r.sharesMemory
}

// IsPrepared reports whether the message is a [grpc.PreparedMsg], which is encoded for one connection.
func (r *Request) IsPrepared() bool { return r.kind == preparedMsg }

// A grpcFunction recognises a function of package grpc by its name, and caches the result by code address. It is safe
// for concurrent use.
type grpcFunction struct {
	name            string
	match, mismatch atomic.Uintptr // addresses of the function, and of the last function that was another one; 0: none yet
}

var (
	grpcInvoke          = grpcFunction{name: "google.golang.org/grpc.invoke"}
	grpcNewClientStream = grpcFunction{name: "google.golang.org/grpc.newClientStream"}
)

// IsGRPCInvoker reports whether f is the function of package grpc that makes unary calls. Otherwise f belongs to an
// interceptor below, which may change the request. It is always false if a future version of grpc renames that
// function.
func IsGRPCInvoker(f grpc.UnaryInvoker) bool { return grpcInvoke.matches(reflect.ValueOf(f).Pointer()) }

// IsGRPCStreamer reports whether f is the function of package grpc that opens streams. See [IsGRPCInvoker].
func IsGRPCStreamer(f grpc.Streamer) bool {
	return grpcNewClientStream.matches(reflect.ValueOf(f).Pointer())
}

func (m *grpcFunction) matches(pc uintptr) bool {
	switch pc {
	case m.match.Load():
		return pc != 0
	case m.mismatch.Load():
		return false
	}
	f := runtime.FuncForPC(pc)
	if f == nil || f.Name() != m.name || f.Entry() != pc {
		m.mismatch.Store(pc)
		return false
	}
	m.match.Store(pc)
	return true
}
