package hedge_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
)

// attempts makes a slow call of a method whose usual time is known, and returns how often it was sent.
func attempts(t *testing.T, method string, opts ...hedge.Option) int {
	c := warmCaller(t, method, opts...)
	i := &invoker{answer: in(time.Second, 5*ms)}
	require.NoError(t, c.intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, i.invoke))
	assert.Equal(t, i.n == 1, c.stats.NotHedgeable.Load() > 0, method)
	return i.n
}

func TestWritesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for names, want := range map[string]int{
			// By their names these read.
			`Get GetItem BatchGetItems ListItems Search LookupX QueryRange ReadRows CountAll DescribeTable FindNearest
			GetURL GetHTTPOptions GetItem2 Get2Items GetOrder GetOrders ListUpdates GetInfo GetIssue ListAddresses
			GetAndroidVersion ReadCommitted GetOutput GetOffset Get_Items`: 2,
			// These begin like reads.
			`ReadModifyWriteRow CheckAndMutateRow GetOrCreateUser FindAndModify FindOrCreate GetAndIncrement GetAndDelete
			CheckIn CheckOut ReadAndAck GetNextTicket GetNextJob QueryAndUpdate CountDown ListAndLock FindOneAndUpdate
			SearchReplace GetSet GetDel GetEx ListPop ReadOnce GetForUpdate BatchGetAndDelete GetLEASE GetNEXTTicket
			GetURLAndDelete GetUser_AND_Delete GetUserANDdelete GetV2UpdateX GetNewAddress ReadReset CountIncr QueryExec`: 1,
			// These promise nothing.
			`CreateItem Getaway get getItem Listen ForgetMe Check Checkout Readjust BatchDelete Batch Get_item Getитем
			GetItem-Delete GetItem.Delete _Get 2Get GET GETItem`: 1,
		} {
			for _, name := range strings.Fields(names) {
				assert.Equal(t, want, attempts(t, "/a.B/"+name), name)
			}
		}
		for _, method := range []string{"/a.B/", "", "nonsense", "/Get"} {
			assert.Equal(t, 1, attempts(t, method), method)
		}
	})
}

func TestWhatAMethodDeclaresBeatsItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string]int{
			"Peek": 2, // NO_SIDE_EFFECTS
			"Put":  1, "GetIdempotent": 1,
			"GetPlain": 2, "Buy": 1, "GetOtherOption": 2, // undeclared: the name decides
			"BoundToGet": 2, "AlsoBoundToGet": 2, "KnownBoundToGet": 2,
			"GetBoundToPost": 1, "GetKnownBoundToPost": 1, "GetBoundToCustom": 1,
			"GetIdempotentBoundToGet": 1,
			"GetBoundToNothing":       2,
		} {
			assert.Equal(t, want, attempts(t, "/hedge.test.Shop/"+name), name)
			if name != "Peek" {
				assert.Equal(t, 2, attempts(t, "/hedge.test.Shop/"+name, hedge.WithMethods("/hedge.test.Shop/"+name)), "WithMethods decides before")
			}
		}
	})
}

const (
	httpGet, httpPost, httpCustom, httpMore = 2, 4, 8, 11 // fields of google.api.HttpRule
	httpExtension                           = 72295728    // google.api.http
)

// field returns a field of a message in wire format.
func field(n protowire.Number, value string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), value))
}

func init() { // a service whose methods declare what they do
	types := extensionHTTP()
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("hedge_test_shop.proto"), Package: proto.String("hedge.test"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/wrappers.proto"},
		Service:    []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Shop")}},
	}
	add := func(name string, level descriptorpb.MethodOptions_IdempotencyLevel, wire string, known bool) {
		o := &descriptorpb.MethodOptions{}
		if level != 0 {
			o.IdempotencyLevel = level.Enum()
		}
		resolver := new(protoregistry.Types)
		if known { // as in a program that has google.api.http linked in
			resolver = types
		}
		if err := (proto.UnmarshalOptions{Merge: true, Resolver: resolver}).Unmarshal([]byte(wire), o); err != nil {
			panic(err)
		}
		if known == (len(o.ProtoReflect().GetUnknown()) > 0) && wire != "" {
			panic(name)
		}
		file.Service[0].Method = append(file.Service[0].Method, &descriptorpb.MethodDescriptorProto{
			Name: &name, InputType: proto.String(".google.protobuf.StringValue"), OutputType: proto.String(".google.protobuf.StringValue"), Options: o,
		})
	}
	binding := func(n protowire.Number) string { return field(httpExtension, field(n, "/v1/items")) }
	add("Put", descriptorpb.MethodOptions_IDEMPOTENT, "", false)
	add("GetIdempotent", descriptorpb.MethodOptions_IDEMPOTENT, "", false)
	add("Peek", descriptorpb.MethodOptions_NO_SIDE_EFFECTS, "", false)
	add("GetPlain", 0, "", false)
	add("Buy", 0, "", false)
	add("GetOtherOption", 0, field(50001, "x"), false)
	add("BoundToGet", 0, binding(httpGet), false)
	add("AlsoBoundToGet", 0, field(httpExtension, field(httpPost, "/v1/items:search")+field(7, "*")+field(httpMore, field(httpGet, "/v1/items"))), false)
	add("KnownBoundToGet", 0, binding(httpGet), true)
	add("GetBoundToPost", 0, binding(httpPost), false)
	add("GetKnownBoundToPost", 0, binding(httpPost), true)
	add("GetBoundToCustom", 0, binding(httpCustom), false)
	add("GetIdempotentBoundToGet", descriptorpb.MethodOptions_IDEMPOTENT, binding(httpGet), false)
	add("GetBoundToNothing", 0, field(httpExtension, ""), false)
	d, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(d)
	}
	if err != nil {
		panic(err)
	}
}

// extensionHTTP returns an extension with the number of google.api.http, for MethodOptions.
func extensionHTTP() *protoregistry.Types {
	d, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("hedge_test_http.proto"), Package: proto.String("hedge.test.api"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/descriptor.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("HttpRule"), Field: []*descriptorpb.FieldDescriptorProto{
			{Name: proto.String("get"), Number: proto.Int32(httpGet), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
			{Name: proto.String("post"), Number: proto.Int32(httpPost), Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()},
		}}},
		Extension: []*descriptorpb.FieldDescriptorProto{{
			Name: proto.String("http"), Number: proto.Int32(httpExtension), Extendee: proto.String(".google.protobuf.MethodOptions"),
			Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), TypeName: proto.String(".hedge.test.api.HttpRule"), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	types := new(protoregistry.Types)
	if err := types.RegisterExtension(dynamicpb.NewExtensionType(d.Extensions().Get(0))); err != nil {
		panic(err)
	}
	return types
}

func TestListedMethodsAreHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for pattern, want := range map[string][2]bool{
			"/a.B/Create": {true, false}, "/a.B/*": {true, true}, "/*": {true, true}, "/a.Bc/*": {false, false}, "/a.B/Creat": {false, false},
		} {
			for n, method := range []string{"/a.B/Create", "/a.B/Delete"} {
				i := &invoker{answer: in(time.Second, 5*ms)}
				c := warmCaller(t, method, hedge.WithMethods(pattern))
				require.NoError(t, c.intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, i.invoke))
				assert.Equal(t, want[n], i.n == 2, "%s %s", pattern, method)
			}
		}
	})
}

func TestUnhedgedMethodIsToldOnceWithTheLineThatAllowsIt(t *testing.T) {
	var log bytes.Buffer
	c := hedge.NewUnaryClientInterceptor(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	i := &invoker{answer: in(0)}
	for range 3 {
		require.NoError(t, c(t.Context(), "/a.B/Create", nil, nil, nil, i.invoke))
	}
	assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")))
	assert.Contains(t, log.String(), `hedge.WithMethods(\"/a.B/Create\")`)
}

// TestNamesOfMethodsAreForgotten calls methods as a proxy does whose clients make up their names.
func TestNamesOfMethodsAreForgotten(t *testing.T) {
	var log bytes.Buffer
	handle := hedge.NewInterceptor(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	nothing := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	call := func(method string) {
		require.NoError(t, handle.Unary()(t.Context(), method, nil, nil, nil, nothing))
	}
	for i := range 3 * hedge.MaxRules {
		call(fmt.Sprintf("/made.up/M%d", i))
		if i%64 == 63 { // counting takes time in proportion to their number
			assert.LessOrEqual(t, hedge.KnownMethods(handle), hedge.MaxRules)
		}
	}
	assert.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("\n")), hedge.MaxRules, "the log is bounded as well")

	known := hedge.KnownMethods(handle)
	call("/made.up/" + strings.Repeat("M", 1<<20))
	assert.Equal(t, known, hedge.KnownMethods(handle), "a long name is not kept")
	runtime.KeepAlive(handle)
}
