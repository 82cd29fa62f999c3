//go:build !hedge_nogrpc

package grpctest_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health/grpc_health_v1" // a service of the program
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest/grpctest"
)

const health = "/grpc.health.v1.Health/"

func TestMethodsAreHedgedAsInTable(t *testing.T) {
	config := `{"methodConfig": [{"name": [{"service": "grpc.health.v1.Health", "method": "Watch"}], "hedgingPolicy": {"maxAttempts": 4}}]}`
	in := hedge.NewInterceptor(hedge.WithMaxHedges(1), hedge.WithMethods(health+"Check"), hedge.WithServiceConfig(config))
	assert.Equal(t, grpctest.Table{
		{health + "Check", 1, "WithMethods lists it"},
		{health + "List", 1, "its name begins with List and holds no word that writes or takes"},
		{health + "Watch", 3, "its service config has methodConfig[0].hedgingPolicy"},
	}, grpctest.Methods(t, in, "/grpc.health.*"))
	assert.Equal(t, grpctest.Table{{health + "List", 1, "its name begins with List and holds no word that writes or takes"}},
		grpctest.Methods(t, in, health+"List"))

	off := hedge.NewInterceptor(hedge.WithMaxHedges(0), hedge.WithLogger(slog.New(slog.DiscardHandler)))
	assert.Equal(t, health+"List  once  MaxHedges is 0\n", grpctest.Methods(t, off, health+"List").String())
	assert.Equal(t, ""+
		"/grpc.health.v1.Health/Check  up to 1  WithMethods lists it\n"+
		"/grpc.health.v1.Health/List   up to 1  its name begins with List and holds no word that writes or takes\n"+
		"/grpc.health.v1.Health/Watch  up to 3  its service config has methodConfig[0].hedgingPolicy\n",
		grpctest.Methods(t, in, "/grpc.health.*").String())
}

// Streams from the client are sent once, whatever allows them.
func TestTableHasClientStreamingMethods(t *testing.T) {
	in := hedge.NewInterceptor(hedge.WithMethods("/*"))
	for _, m := range grpctest.Methods(t, in, "/grpc.testing.TestService/*") {
		streams := []string{"StreamingInputCall", "FullDuplexCall", "HalfDuplexCall"}
		_, name, _ := strings.Cut(m.Name[1:], "/")
		if slices.Contains(streams, name) {
			assert.Equal(t, grpctest.Method{Name: m.Name, Why: "its client sends a stream"}, m)
		} else {
			assert.Equal(t, grpctest.Method{Name: m.Name, Hedges: 2, Why: "WithMethods lists it"}, m)
		}
	}
}

func TestMethodsListsAllLinkedServices(t *testing.T) {
	all := grpctest.Methods(t, hedge.NewInterceptor())
	var names []string
	for _, m := range all {
		names = append(names, m.Name)
	}
	assert.True(t, slices.IsSorted(names))
	assert.Equal(t, len(names), len(slices.Compact(slices.Clone(names))))
	srv := grpc.NewServer()
	testpb.RegisterTestServiceServer(srv, new(service))
	for name, s := range srv.GetServiceInfo() {
		require.NotEmpty(t, s.Methods)
		for _, m := range s.Methods {
			assert.Contains(t, names, "/"+name+"/"+m.Name)
		}
	}
	assert.Contains(t, names, health+"Check")
}

func TestMethodsFailsOnPatternWithoutMatch(t *testing.T) {
	f := &failures{TB: t}
	got := grpctest.Methods(f, hedge.NewInterceptor(), "/shop.Catalog/*", health+"List", health+"list")
	assert.Len(t, got, 1)
	assert.Equal(t, []string{
		`hedgetest: Methods: no method that is linked in matches "/shop.Catalog/*"`,
		`hedgetest: Methods: no method that is linked in matches "/grpc.health.v1.Health/list"`,
	}, f.all)
}

// A meddler is a file whose services are listed while another file is registered, for example by a plugin.
type meddler struct {
	protoreflect.FileDescriptor
	meddle *atomic.Bool
	other  protoreflect.FileDescriptor
}

func (m meddler) Services() protoreflect.ServiceDescriptors {
	if m.meddle.CompareAndSwap(true, false) {
		if err := protoregistry.GlobalFiles.RegisterFile(m.other); err != nil {
			panic(err)
		}
	}
	return m.FileDescriptor.Services()
}

func TestMethodsAllowsConcurrentRegistration(t *testing.T) {
	file := func(name string) protoreflect.FileDescriptor {
		fd, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{Name: proto.String(name), Package: proto.String("meddler")}, nil)
		require.NoError(t, err)
		return fd
	}
	m := meddler{file("meddler/first.proto"), new(atomic.Bool), file("meddler/other.proto")}
	require.NoError(t, protoregistry.GlobalFiles.RegisterFile(m))
	m.meddle.Store(true)
	done := make(chan grpctest.Table)
	go func() { done <- grpctest.Methods(t, hedge.NewInterceptor(), health+"List") }()
	select {
	case all := <-done:
		assert.Len(t, all, 1)
	case <-time.After(30 * time.Second): // a lock is held twice
		t.Fatal("deadlock")
	}
	assert.False(t, m.meddle.Load())
}
