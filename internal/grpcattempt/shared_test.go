package grpcattempt

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestNeedsEncodingOnlyIfMemoryIsShared checks each pair twice: the second time, the type cache knows its types.
func TestNeedsEncodingOnlyIfMemoryIsShared(t *testing.T) {
	one := new(wrapperspb.StringValue)
	dynamic := dynamicpb.NewMessage(one.ProtoReflect().Descriptor())
	for name, c := range map[string]struct {
		request, reply any
		shares         bool
	}{
		"one message":                      {one, one, true},
		"one type":                         {one, new(wrapperspb.StringValue), false},
		"other types":                      {one, new(wrapperspb.Int64Value), false},
		"a type that contains itself":      {new(structpb.Value), new(structpb.Value), true},
		"a request that contains a reply":  {new(structpb.Struct), new(structpb.Value), true},
		"a map of replies":                 {new(structpb.Struct), new(structpb.ListValue), true},
		"a reply that contains a request":  {new(descriptorpb.FieldDescriptorProto), new(descriptorpb.DescriptorProto), true}, // by extensions of its options
		"a request without generated code": {dynamic, new(wrapperspb.Int64Value), true},
		"a reply without generated code":   {new(wrapperspb.Int64Value), dynamic, true},
		"a reply of another kind":          {one, new([]byte), true},
	} {
		t.Run(name, func(t *testing.T) {
			var known TypeCache
			for range 2 {
				var p CallTemplate
				assert.Equal(t, None, known.FillTemplate(&p, c.request, c.reply, nil))
				assert.Equal(t, c.shares, p.Request.NeedsEncoding())
			}
			var p CallTemplate
			assert.Equal(t, None, known.FillTemplate(&p, c.request, c.reply, []grpc.CallOption{grpc.CallContentSubtype("x")}))
			assert.True(t, p.Request.NeedsEncoding(), "a codec that may write to all that the reply refers to")
		})
	}
}

// A namedCodec is a codec of the program with the name of grpc's default codec.
type namedCodec struct{ encoding.CodecV2 }

func TestIsGRPCCodecRejectsCodecOfProgram(t *testing.T) {
	own := encoding.GetCodecV2("proto")
	assert.True(t, isGRPCCodec(own))
	assert.False(t, isGRPCCodec(namedCodec{own}))
	assert.False(t, isGRPCCodec(nil), "a codec of version 1")
	assert.False(t, isDefaultCodecReplaced())
}

func TestDefaultOptionsOfConnAreFound(t *testing.T) {
	pointer := new(grpc.EmptyCallOption)
	for _, defaults := range [][]grpc.CallOption{nil, {grpc.UseCompressor("gzip")}, {pointer, grpc.WaitForReady(true), grpc.WaitForReady(true)}} {
		cc, err := grpc.NewClient("passthrough:///host", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(defaults...))
		assert.NoError(t, err)
		t.Cleanup(func() { _ = cc.Close() })
		assert.Equal(t, defaults, defaultOptions(cc), "else hedges over other connections have the options of this one")
		own := []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(1)}
		assert.Equal(t, own, WithoutDefaultOptions(append(defaults[:len(defaults):len(defaults)], own...), cc))
	}
	assert.Nil(t, defaultOptions(nil))
}
