package grpcattempt_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/internal/grpcattempt"
)

// TestIsGRPCInvokerRecognisesGRPCFunctions has two interceptors: only the last one gets the function of package grpc.
func TestIsGRPCInvokerRecognisesGRPCFunctions(t *testing.T) {
	var invokes, streams []bool
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		invokes = append(invokes, grpcattempt.IsGRPCInvoker(invoker))
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	stream := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		streams = append(streams, grpcattempt.IsGRPCStreamer(streamer))
		return streamer(ctx, desc, cc, method, opts...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		for n := 1; n <= 3; n++ {
			invokes, streams = nil, nil
			all := []grpc.UnaryClientInterceptor{unary, unary, unary}[:n]
			alls := []grpc.StreamClientInterceptor{stream, stream, stream}[:n]
			cc, err := grpc.NewClient("passthrough:///nowhere", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithChainUnaryInterceptor(all...), grpc.WithChainStreamInterceptor(alls...))
			require.NoError(t, err)
			_ = cc.Invoke(ctx, "/a.B/C", wrapperspb.String(""), new(wrapperspb.StringValue))
			_, _ = cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/a.B/C")
			require.NoError(t, cc.Close())
			want := make([]bool, n)
			want[n-1] = true
			assert.Equal(t, want, invokes)
			assert.Equal(t, want, streams)
		}
	}
	assert.False(t, grpcattempt.IsGRPCInvoker(nil))
	assert.False(t, grpcattempt.IsGRPCStreamer(nil))
}

// TestEveryGRPCOptionIsClassified fails if package grpc has a new option type. Calls with such an option are not
// hedged.
func TestEveryGRPCOptionIsClassified(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "google.golang.org/grpc").Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func \((?:\w+ )?\*?(\w+)\) before\(`).FindAllStringSubmatch(string(src), -1) {
			found++
			assert.True(t, grpcattempt.IsClassified(m[1]), m[1])
		}
	}
	assert.Greater(t, found, 10)
}

func TestRequestEncodeKeepsMessage(t *testing.T) {
	m := wrapperspb.String("before")
	r := grpcattempt.RequestOf(m)
	buffer := r.Encode(make([]byte, 0, 64))
	require.True(t, r.IsCloneable())
	assert.Equal(t, 64, cap(buffer), "the memory is used again")
	m.Value = "after"
	got, ok := r.Copy()
	require.True(t, ok)
	assert.True(t, proto.Equal(wrapperspb.String("before"), got.(proto.Message)))
	r = grpcattempt.RequestOf(m)
	got, ok = r.Copy()
	require.True(t, ok)
	assert.True(t, proto.Equal(m, got.(proto.Message)))
	assert.NotSame(t, m, got)

	r = grpcattempt.RequestOf(wrapperspb.String("\xff"))
	r.Encode(nil)
	assert.False(t, r.IsCloneable(), "it cannot be encoded")
	_, ok = r.Copy()
	assert.False(t, ok)
}
