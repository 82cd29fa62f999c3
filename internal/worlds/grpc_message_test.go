//go:build !hedge_nogrpc

package worlds_test

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/encoding"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
)

// A codec encodes messages that are not plain proto messages, as codecs of proxies do.
type codec struct{}

func init() { encoding.RegisterCodec(codec{}) }

func (codec) Name() string { return "worlds" }

// A wrappedRequest embeds a proto message and has further data.
type wrappedRequest struct {
	*testpb.SimpleRequest
	trace string
}

// An envelope has a proto message after it has been decoded.
type envelope struct{ proto.Message }

func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *bytes.Buffer: // it is used up
		return proto.Marshal(newSimpleRequest(string(v.Next(v.Len()))))
	case *wrappedRequest:
		return proto.Marshal(newSimpleRequest(string(v.Payload.Body) + v.trace))
	case proto.Message:
		return proto.Marshal(v)
	}
	return nil, fmt.Errorf("a message of type %T", v)
}

func (codec) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *envelope:
		v.Message = new(testpb.SimpleResponse)
		return proto.Unmarshal(data, v.Message)
	case *any: // its target belongs to the caller
		reply := new(testpb.SimpleResponse)
		err := proto.Unmarshal(data, reply)
		if text, ok := (*v).(*string); ok {
			*text = reply.Username
		} else {
			*v = reply.Username
		}
		return err
	case proto.Message:
		return proto.Unmarshal(data, v)
	}
	return fmt.Errorf("a message of type %T", v)
}

func newSimpleRequest(text string) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(text)}}
}

const requestText = "request"

// newMessage returns the request, and a function that changes it after the call.
func (c *grpcCall) newMessage() (req any, change func()) {
	m := newSimpleRequest(requestText)
	change = func() { m.Payload.Body = []byte("changed") }
	switch c.request {
	case "buffer":
		b := bytes.NewBufferString(requestText)
		return b, func() { b.Reset(); b.WriteString("changed") }
	case "wrapped":
		return &wrappedRequest{m, " with trace"}, change
	}
	return m, change
}

// isExpected reports whether the server got the request of the caller, with at most one signature.
func (c *grpcCall) isExpected(text string) bool {
	want := requestText
	if c.request == "wrapped" {
		want += " with trace"
	}
	return text == want || text == want+" signed" || text == requestText+" signed with trace"
}

// newReply returns the message for the reply, and a function that returns its text.
func (c *grpcCall) newReply(req any) (reply any, read func() string) {
	if m, ok := req.(*testpb.SimpleRequest); ok && c.reply == "request" {
		return m, func() string { return string(m.Payload.GetBody()) }
	}
	m := new(testpb.SimpleResponse)
	switch c.reply {
	case "filled":
		m.Username, m.OauthScope = "before", "before"
	case "envelope":
		e := new(envelope)
		return e, func() string {
			m, _ := e.Message.(*testpb.SimpleResponse)
			return m.GetUsername()
		}
	case "any":
		var text string
		var v any = &text
		return &v, func() string { return text }
	}
	return m, func() string { return m.Username + "/" + m.OauthScope }
}

// serverReply returns the reply of the server to a unary call.
func (c *grpcCall) serverReply(text string) proto.Message {
	if c.reply == "request" {
		return newSimpleRequest(text)
	}
	return &testpb.SimpleResponse{Username: text}
}
