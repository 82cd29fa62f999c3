package ranges

import (
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/storage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gohedge/hedge/rangeread"
)

func TestGCSOverGRPC(t *testing.T) {
	s := &store{gate: new(gate)}
	server := &objectServer{gate: s.gate}
	s.put = server.put
	t.Setenv("STORAGE_EMULATOR_HOST_GRPC", server.serve(t))
	client, err := storage.NewGRPCClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	s.fetch = GCS(client.Bucket("shop").Object("catalog"))
	s.check(t)
}

// TestGCSAnswerWithoutAMessageIsNotTheEnd: the client returns io.EOF itself then.
func TestGCSAnswerWithoutAMessageIsNotTheEnd(t *testing.T) {
	s := &objectServer{gate: new(gate)}
	s.put(content(1))
	t.Setenv("STORAGE_EMULATOR_HOST_GRPC", s.serve(t))
	client, err := storage.NewGRPCClient(t.Context())
	require.NoError(t, err)
	defer client.Close()
	s.gate.next.Store(nothing)
	n, err := rangeread.New(GCS(client.Bucket("shop").Object("catalog")), rangeread.Options{}).ReadAt(make([]byte, 10), 0)
	assert.Zero(t, n)
	assert.Equal(t, io.ErrUnexpectedEOF, err)
}

// An objectServer answers ReadObject of google.storage.v2 for one object. There is no server of it that a Go program can start:
// that of fake-gcs-server is of version 1.
type objectServer struct {
	gate       *gate
	generation atomic.Int64
	object     atomic.Pointer[[]byte]
}

func (s *objectServer) put(content []byte) {
	s.object.Store(&content)
	s.generation.Add(1)
}

// serve returns the address. The messages of the service are in a package that is internal to the client, and known to
// the registry by their names.
func (s *objectServer) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "google.storage.v2.Storage", Streams: []grpc.StreamDesc{
		{StreamName: "ReadObject", ServerStreams: true, Handler: s.readObject},
	}}, nil)
	go func() { _ = server.Serve(counted{l, s.gate}) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readObject sends at most 2 MiB in a message, with its checksum, as the service does.
func (s *objectServer) readObject(_ any, stream grpc.ServerStream) error {
	req := message("ReadObjectRequest", "{}")
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	what, over := s.gate.pass()
	defer over()
	if what == silent {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	if what == nothing {
		return nil
	}
	object, generation := *s.object.Load(), s.generation.Load()
	offset, limit := number(req, "read_offset"), number(req, "read_limit")
	if asked := number(req, "generation"); asked != 0 && asked != generation {
		return status.Error(codes.NotFound, "no such object")
	}
	if offset >= int64(len(object)) {
		return status.Error(codes.OutOfRange, "the offset is behind the end")
	}
	end := int64(len(object))
	if limit > 0 {
		end = min(end, offset+limit)
	}
	stop := end
	if what == halfway {
		stop = (offset + end) / 2
	}
	about := fmt.Sprintf(`{"contentRange":{"start":%d, "end":%d, "completeLength":%d}, "metadata":{"name":"catalog",
		"bucket":"projects/_/buckets/shop", "size":%d, "generation":%d}}`, offset, end, len(object), len(object), generation)
	for at := offset; at < stop; about = "{}" {
		next := min(at+2<<20, stop)
		answer := message("ReadObjectResponse", about)
		data := field(answer, "checksummed_data").Message()
		set(data, "content", protoreflect.ValueOfBytes(object[at:next]))
		set(data, "crc32c", protoreflect.ValueOfUint32(crc32.Checksum(object[at:next], castagnoli)))
		err := stream.SendMsg(answer)
		if err != nil {
			return err
		}
		at = next
	}
	if what == halfway {
		<-stream.Context().Done()
	}
	return stream.Context().Err()
}

// number returns a field of a message.
func number(m proto.Message, name protoreflect.Name) int64 {
	r := m.ProtoReflect()
	return r.Get(r.Descriptor().Fields().ByName(name)).Int()
}

// field returns a field of a message that is a message.
func field(m proto.Message, name protoreflect.Name) protoreflect.Value {
	r := m.ProtoReflect()
	return r.Mutable(r.Descriptor().Fields().ByName(name))
}

// set sets a field of a message.
func set(m protoreflect.Message, name protoreflect.Name, v protoreflect.Value) {
	m.Set(m.Descriptor().Fields().ByName(name), v)
}

// message returns a message of google.storage.v2, from JSON.
func message(name protoreflect.Name, text string) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("google.storage.v2").Append(name))
	if err != nil {
		panic(err)
	}
	m := kind.New().Interface()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		panic(err)
	}
	return m
}
