// Package readonly tells gRPC methods that only read from those that may write: by the options of
// their descriptors where the program has them registered, and else by their names.
package readonly

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Method reports whether the method with a full name such as "/pkg.Service/Method" only reads,
// by its declaration or else by its name.
func Method(full string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name)); err == nil {
		if m, ok := d.(protoreflect.MethodDescriptor); ok {
			if o, ok := m.Options().(*descriptorpb.MethodOptions); ok {
				if readOnly, declared := declaration(o); declared {
					return readOnly
				}
			}
		}
	}
	return readsByName(name)
}

// declaration reports whether options say what a method does, and if so, whether it only reads.
func declaration(o *descriptorpb.MethodOptions) (readOnly, declared bool) {
	if level := o.GetIdempotencyLevel(); level != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN {
		return level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS, true
	}
	// The extension google.api.http is a field of its own type if the program has that
	// linked in, and an unknown field otherwise. On the wire it is the same.
	wire, err := proto.Marshal(o)
	if err != nil {
		return false, true
	}
	var http []byte
	eachField(wire, func(n protowire.Number, v []byte) {
		if n == httpExtension {
			http = append(http, v...) // messages merge by concatenation
		}
	})
	return httpBinding(http)
}

// Field numbers of google/api/http.proto and google/api/annotations.proto.
const (
	httpExtension      = 72295728 // of MethodOptions, a HttpRule
	httpGet            = 2        // of HttpRule, as all below
	httpPut            = 3
	httpPost           = 4
	httpDelete         = 5
	httpPatch          = 6
	httpCustom         = 8
	additionalBindings = 11
)

// httpBinding reports whether a HttpRule binds a method to HTTP, and if so, whether
// one of its bindings is GET. Then anybody may repeat the call (RFC 9110, 9.2.1), also
// if the same method can be called by POST, as long queries are.
func httpBinding(rule []byte) (get, bound bool) {
	eachField(rule, func(n protowire.Number, v []byte) {
		switch n {
		case httpGet:
			get, bound = true, true
		case httpPut, httpPost, httpDelete, httpPatch, httpCustom:
			bound = true
		case additionalBindings:
			g, b := httpBinding(v)
			get, bound = get || g, bound || b
		}
	})
	return get, bound
}

// eachField calls f with the number and the value of each field of a message that is
// a string or a message. It stops where the message is malformed.
func eachField(message []byte, f func(protowire.Number, []byte)) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		if kind == protowire.BytesType {
			v, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return
			}
			f(n, v)
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return
		}
		message = message[size:]
	}
}
