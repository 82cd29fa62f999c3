// Package readonly decides whether a gRPC method only reads, so that it is safe to send twice. It uses the options of the
// method's descriptor if the program has registered that. Otherwise it uses the name of the method.
package readonly

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// A Classification says whether a gRPC method only reads, and why.
type Classification struct {
	Reads    bool   // the method only reads
	Declared bool   // options of the descriptor decide Reads; false: Reads is a guess from the name
	Reason   string // reason as a clause, such as "it is bound to HTTP GET"
}

// ClassifyMethod classifies the gRPC method with the given full name, such as "/pkg.Service/Method". It uses the options of the
// descriptor if they are conclusive. Otherwise it uses the name of the method and the other methods of its service.
func ClassifyMethod(full string) Classification {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name))
	if m, ok := d.(protoreflect.MethodDescriptor); ok {
		return classifyDescriptor(m)
	}
	return classifyName(name)
}

// classifyDescriptor classifies a method whose descriptor is registered. It uses the options of the descriptor if they
// are conclusive. Otherwise it uses the name of the method and the other methods of its service.
func classifyDescriptor(m protoreflect.MethodDescriptor) Classification {
	if m.IsStreamingClient() {
		return Classification{Reason: "its client sends a stream"}
	}
	if o, ok := m.Options().(*descriptorpb.MethodOptions); ok {
		if v := classifyOptions(o); v.Declared {
			return v
		}
	}
	v := classifyName(string(m.Name()))
	if v.Reads {
		if why := findContradiction(m); why != "" {
			return Classification{Reason: why}
		}
	}
	return v
}

// classifyName classifies a method by its name alone.
func classifyName(name string) Classification {
	reads, why := readsByName(name)
	return Classification{Reads: reads, Reason: why}
}

// classifyOptions classifies a method by the options of its descriptor. The result has Declared set to false if the options are
// not conclusive.
func classifyOptions(o *descriptorpb.MethodOptions) Classification {
	switch level := o.GetIdempotencyLevel(); level {
	case descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN:
	case descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		return Classification{Reads: true, Declared: true, Reason: "it declares NO_SIDE_EFFECTS"}
	default:
		return Classification{Declared: true, Reason: "it declares " + level.String() + ", which is not enough"}
	}
	// If the program has linked in the type of the extension google.api.http, the extension is a field of that type, and otherwise
	// an unknown field. The wire format is the same.
	wire, err := proto.Marshal(o)
	if err != nil {
		return Classification{Declared: true, Reason: "its options cannot be read"}
	}
	var http []byte
	forEachField(wire, func(n protowire.Number, v []byte) {
		if n == httpExtension {
			http = append(http, v...) // messages merge by concatenation
		}
	})
	switch get, bound := httpBinding(http); {
	case get:
		return Classification{Reads: true, Declared: true, Reason: "it is bound to HTTP GET"}
	case bound:
		return Classification{Declared: true, Reason: "it is bound to another method of HTTP than GET"}
	}
	return Classification{}
}

// Field numbers in google/api/annotations.proto and google/api/http.proto.
const (
	httpExtension      = 72295728 // field of MethodOptions that holds an HttpRule
	httpGet            = 2        // field of HttpRule, as are the fields that follow
	httpPut            = 3
	httpPost           = 4
	httpDelete         = 5
	httpPatch          = 6
	httpCustom         = 8
	additionalBindings = 11
)

// httpBinding decodes an encoded HttpRule of the option google.api.http. The result bound is true if the rule binds the
// method to HTTP, and get is true if one of its bindings is GET.
//
// A method with a GET binding is safe to repeat (RFC 9110 §9.2.1), even if it also has a POST binding for long queries.
func httpBinding(rule []byte) (get, bound bool) {
	forEachField(rule, func(n protowire.Number, v []byte) {
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

// forEachField decodes a message in wire format without knowing its type. It calls f with the number and the value of
// each length-delimited field: a string, bytes or a message. It stops where the encoding is invalid.
func forEachField(message []byte, f func(protowire.Number, []byte)) {
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
