//go:build !hedge_nogrpc

package worlds_test

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/encoding"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
)

// A codec knows messages that are no plain proto messages, as codecs of proxies and of other languages' bindings do.
type codec struct{}

func init() { encoding.RegisterCodec(codec{}) }

func (codec) Name() string { return "worlds" }

// A wrapped request is a proto message by embedding, and knows more than that message.
type wrapped struct {
	*testpb.SimpleRequest
	trace string
}

// An envelope is a proto message once it has been decoded, and not before.
type envelope struct{ proto.Message }

func (codec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case *bytes.Buffer: // it is used up
		return proto.Marshal(requestOf(string(v.Next(v.Len()))))
	case *wrapped:
		return proto.Marshal(requestOf(string(v.Payload.Body) + v.trace))
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
	case *any: // what it points to is the caller's
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

func requestOf(text string) *testpb.SimpleRequest {
	return &testpb.SimpleRequest{Payload: &testpb.Payload{Body: []byte(text)}}
}

const requestText = "request"

// message makes the request, and returns what changes it when the caller has it back.
func (c *grpcCall) message() (req any, change func()) {
	m := requestOf(requestText)
	change = func() { m.Payload.Body = []byte("changed") }
	switch c.request {
	case "buffer":
		b := bytes.NewBufferString(requestText)
		return b, func() { b.Reset(); b.WriteString("changed") }
	case "wrapped":
		return &wrapped{m, " with trace"}, change
	}
	return m, change
}

// expected reports whether the server is sent what the caller handed in, with one signature at most.
func (c *grpcCall) expected(text string) bool {
	want := requestText
	if c.request == "wrapped" {
		want += " with trace"
	}
	return text == want || text == want+" signed" || text == requestText+" signed with trace"
}

// target returns the message for the reply, and a function that reads its text.
func (c *grpcCall) target(req any) (reply any, read func() string) {
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

// answer returns the message that the server answers a unary call with.
func (c *grpcCall) answer(text string) proto.Message {
	if c.reply == "request" {
		return requestOf(text)
	}
	return &testpb.SimpleResponse{Username: text}
}
