package integration

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gohedge/hedge"
)

// object is what the server of [TestGCSOverGRPC] has.
const object = "three lamps, four chairs"

func TestGCSOverGRPC(t *testing.T) {
	s := new(objects)
	t.Setenv("STORAGE_EMULATOR_HOST_GRPC", s.serve(t))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	hedged := hedge.NewInterceptor()
	client, err := storage.NewGRPCClient(ctx,
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(hedged.Stream())),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(hedged.Unary())))

	require.NoError(t, err)
	defer client.Close()
	bidirectional, err := storage.NewGRPCClient(ctx, storage.WithGRPCBidiReads(),
		option.WithGRPCDialOption(grpc.WithChainStreamInterceptor(hedged.Stream())))
	require.NoError(t, err)
	defer bidirectional.Close()

	read := func(ctx context.Context, client *storage.Client) string {
		r, err := client.Bucket("shop").Object("catalog").NewRangeReader(ctx, 0, int64(len(object)))
		require.NoError(t, err)
		defer r.Close()
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		return string(b)
	}
	require.Equal(t, object, read(ctx, client)) // which connects
	require.Equal(t, object, read(ctx, bidirectional))

	s.slow.Store(true)
	for n := range int64(2) {
		require.Equal(t, object, read(hedge.WithDelay(ctx, delay), client))
		require.EqualValues(t, n+1, hedged.Snapshot().Stats.HedgeWins)
	}

	s.slow.Store(false)
	s.wait.Store(int64(5 * delay))
	before, calls := hedged.Snapshot().Stats, s.bidirectional.Load()
	require.Equal(t, object, read(hedge.WithDelay(ctx, delay), bidirectional))
	after := hedged.Snapshot().Stats
	assert.EqualValues(t, 1, s.bidirectional.Load()-calls)
	assert.EqualValues(t, 1, after.NotHedgeable-before.NotHedgeable)
	assert.Equal(t, before.HedgesSent, after.HedgesSent)
	for method, want := range map[string]bool{"GetObject": true, "ListObjects": true, "GetBucket": true, "ListBuckets": true,
		"WriteObject": false, "BidiWriteObject": false, "DeleteObject": false, "ComposeObject": false, "RewriteObject": false, "UpdateObject": false} {
		most, _ := hedged.Hedges("/google.storage.v2.Storage/" + method)
		assert.Equal(t, want, most > 0, method)
	}
}

// objects is a server of google.storage.v2 with one object. While it is slow, it never answers a primary.
type objects struct {
	slow          atomic.Bool
	wait          atomic.Int64 // before an answer of BidiReadObject
	bidirectional atomic.Int64 // calls of BidiReadObject
}

// serve returns the address. The messages of the service are in a package that is internal to the client, and known to
// the registry by their names.
func (s *objects) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "google.storage.v2.Storage", Streams: []grpc.StreamDesc{
		{StreamName: "ReadObject", ServerStreams: true, Handler: s.readObject},
		{StreamName: "BidiReadObject", ServerStreams: true, ClientStreams: true, Handler: s.bidiReadObject},
	}}, nil)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

func (s *objects) readObject(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(message("ReadObjectRequest", "{}")); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	if s.slow.Load() && len(md["grpc-previous-rpc-attempts"]) == 0 {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	// In two messages.
	err := stream.SendMsg(message("ReadObjectResponse", `{"checksummedData":{"content":%s}, "contentRange":{"start":0, "end":%d, "completeLength":%d},
		"metadata":{"name":"catalog", "bucket":"projects/_/buckets/shop", "size":%d}}`, encoded(object[:5]), len(object), len(object), len(object)))
	if err != nil {
		return err
	}
	return stream.SendMsg(message("ReadObjectResponse", `{"checksummedData":{"content":%s}}`, encoded(object[5:])))
}

func (s *objects) bidiReadObject(_ any, stream grpc.ServerStream) error {
	s.bidirectional.Add(1)
	if err := stream.RecvMsg(message("BidiReadObjectRequest", "{}")); err != nil {
		return err
	}
	time.Sleep(time.Duration(s.wait.Load()))
	return stream.SendMsg(message("BidiReadObjectResponse", `{"objectDataRanges":[{"checksummedData":{"content":%s}, "readRange":{"readId":1, "readLength":%d}, "rangeEnd":true}],
		"metadata":{"name":"catalog", "bucket":"projects/_/buckets/shop", "size":%d}}`, encoded(object), len(object), len(object)))
}

// encoded returns bytes as messages in JSON have them.
func encoded(s string) string { return strconv.Quote(base64.StdEncoding.EncodeToString([]byte(s))) }

// message returns a message of google.storage.v2.
func message(name protoreflect.Name, text string, args ...any) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("google.storage.v2").Append(name))
	if err != nil {
		panic(err)
	}
	m := kind.New().Interface()
	if err := protojson.Unmarshal(fmt.Appendf(nil, text, args...), m); err != nil {
		panic(err)
	}
	return m
}
