//go:build !hedge_nogrpc

package grpc_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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
	"github.com/gohedge/hedge/internal/doubles"
)

// attempts makes a slow call of a method whose latency is known, and returns the number of attempts.
func attempts(t *testing.T, method string, opts ...hedge.GRPCOption) int {
	c := warmCaller(t, method, opts...)
	i := &invoker{answer: in(time.Second, 5*ms)}
	require.NoError(t, c.intercept(t.Context(), method, nil, new(wrapperspb.StringValue), nil, i.invoke))
	assert.Equal(t, i.n == 1, c.stats.NotHedgeable.Load() > 0, method)
	return i.n
}

func TestInterceptorSendsWritesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for names, want := range map[string]int{
			// By their names these read.
			`Get GetItem BatchGetItems ListItems LookupX QueryRange ReadRows CountAll DescribeTable FindNearest
			GetURL GetHTTPOptions GetItem2 Get2Items GetOrder GetOrders ListUpdates GetInfo GetIssue ListAddresses
			GetAndroidVersion ReadCommitted GetOutput GetOffset Get_Items`: 2,
			// These begin like reads.
			`ReadModifyWriteRow CheckAndMutateRow GetOrCreateUser FindAndModify FindOrCreate GetAndIncrement GetAndDelete
			CheckIn CheckOut ReadAndAck GetNextTicket GetNextJob QueryAndUpdate CountDown ListAndLock FindOneAndUpdate
			SearchReplace GetSet GetDel GetEx ListPop ReadOnce GetForUpdate BatchGetAndDelete GetLEASE GetNEXTTicket
			GetURLAndDelete Query Search GetUser_AND_Delete GetUserANDdelete GetV2UpdateX GetNewAddress ReadReset CountIncr QueryExec
			GetFreshAddress GetFreePort QueryMutation GetDailyBonus GetBonuses`: 1,
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

func TestMethodDeclarationTakesPrecedenceOverName(t *testing.T) {
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

// TestR4PublicMethodsWithSideEffectsAreSentOnce calls methods of public services whose names begin like those of reads.
func TestR4PublicMethodsWithSideEffectsAreSentOnce(t *testing.T) {
	for method, does := range map[string]string{
		"/api.Dgraph/Query":                                  "runs mutations",
		"/cache_client.Scs/ListConcatenateFront":             "appends to a list",
		"/cache_client.Scs/ListRetain":                       "cuts a list",
		"/frontendv2pb.FrontendForQuerier/QueryResult":       "delivers a result",
		"/arrow.flight.protocol.FlightService/GetFlightInfo": "runs a statement",
		"/tensorflow.data.WorkerService/GetElement":          "takes an element",
		"/api.v1.beta1.Suggestion/GetSuggestions":            "makes trials",
		"/pulumirpc.ResourceMonitor/ReadResource":            "registers a resource",
		"/message.VerifyService/GetVerifyCode":               "sends a mail",
		"/runtime.v1.RuntimeService/GetContainerEvents":      "takes events",
		"/user.User/GetSMSCode":                              "sends a message",
	} {
		synctest.Test(t, func(t *testing.T) {
			assert.Equal(t, 1, attempts(t, method), "%s %s", method, does)
		})
	}
}

func TestWithDeclaredMethodsHedgesDeclaredMethodsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string]int{"Peek": 2, "BoundToGet": 2, "GetPlain": 1, "GetOtherOption": 1, "GetUnknown": 1, "Put": 1, "GetBoundToPost": 1} {
			assert.Equal(t, want, attempts(t, "/hedge.test.Shop/"+name, hedge.WithDeclaredMethods()), name)
		}
		for what, allowed := range map[string]hedge.GRPCOption{
			"WithMethods": hedge.WithMethods("/hedge.test.Shop/*"), "a route": hedge.WithRoute("/hedge.test.Shop/*", hedge.Policy{Hedgeable: true}),
		} {
			assert.Equal(t, 2, attempts(t, "/hedge.test.Shop/GetPlain", hedge.WithDeclaredMethods(), allowed), what)
		}
	})
}

func TestInterceptorHedgesReportsCountAndReason(t *testing.T) {
	var log bytes.Buffer
	in := hedge.NewInterceptor(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), hedge.WithMethods("/a.B/Listed"),
		hedge.WithRoute("/a.B/GetOff", hedge.Policy{Off: true}), hedge.WithRoute("/a.B/Allowed", hedge.Policy{Hedgeable: true}))
	declared := hedge.NewInterceptor(hedge.WithDeclaredMethods(), hedge.WithMaxHedges(2))
	for _, c := range []struct {
		in     *hedge.Interceptor
		method string
		hedged bool
		why    string
	}{
		{in, "/a.B/Listed", true, "WithMethods lists it"},
		{in, "/a.B/GetOff", false, "its route is Off"},
		{in, "/a.B/Allowed", true, "its route is Hedgeable"},
		{in, "/a.B/GetItem", true, "its name begins with Get and holds no word that writes or takes"},
		{in, "/a.B/GetAndDelete", false, "its name holds And, which announces more than reading"},
		{in, "/a.B/ListRemove", false, "its name holds Remove, which writes or takes"},
		{in, "/a.B/Create", false, "its name begins with no word that reads"},
		{in, "/a.B/Query", false, "its name says too little: a query can be any statement"},
		{in, "/a.B/GetVerificationCode", false, "it may make, or take, the Verification that its name asks for"},
		{in, "/a.B/GetAccessToken", false, "it may make the Token that its name asks for"},
		{in, "/a.B/GetID", false, "it may make the ID that its name asks for"},
		{in, "nonsense", false, "its name is not in CamelCase"},
		{in, "/hedge.test.Shop/Peek", true, "it declares NO_SIDE_EFFECTS"},
		{in, "/hedge.test.Shop/GetIdempotent", false, "it declares IDEMPOTENT, which is not enough"},
		{in, "/hedge.test.Shop/BoundToGet", true, "it is bound to HTTP GET"},
		{in, "/hedge.test.Shop/GetBoundToPost", false, "it is bound to another method of HTTP than GET"},
		{declared, "/a.B/GetItem", false, "it declares nothing"},
		{declared, "/a.B/Create", false, "it declares nothing"},
		{declared, "/hedge.test.Shop/BoundToGet", true, "it is bound to HTTP GET"},
		{hedge.NewInterceptor(hedge.WithMaxHedges(0)), "/a.B/GetItem", false, "MaxHedges is 0"},
		{hedge.NewInterceptor(hedge.WithBudgetPercent(0)), "/a.B/GetItem", false, "the budget is 0"},
		{hedge.NewInterceptor(hedge.WithMaxHedges(0)), "/a.B/Create", false, "its name begins with no word that reads"},
	} {
		most, why := c.in.Hedges(c.method)
		want := 0
		if c.hedged {
			want = 2
		}
		assert.Equal(t, want, most, c.method)
		assert.Equal(t, c.why, why, c.method)
	}
	assert.Empty(t, log.String(), "to ask is no call")
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

// extensionHTTP returns a registry with an extension of MethodOptions that has the number of google.api.http.
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

func TestWithMethodsHedgesListedMethods(t *testing.T) {
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

func TestInterceptorLogsUnhedgedMethodOnceWithOption(t *testing.T) {
	var log bytes.Buffer
	c := hedge.NewUnaryClientInterceptor(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	i := &invoker{answer: in(0)}
	for range 3 {
		require.NoError(t, c(t.Context(), "/a.B/Create", nil, nil, nil, i.invoke))
	}
	assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")))
	assert.Contains(t, log.String(), `hedge.WithMethods(\"/a.B/Create\")`)
	assert.Contains(t, log.String(), `why="its name begins with no word that reads"`)
}

// TestMethodCacheIsBounded calls methods as a proxy does whose clients make up their names.

func TestLogNamesAtMost4096Methods(t *testing.T) {
	doubles.SkipSimulation(t)
	var log bytes.Buffer
	in := hedge.NewInterceptor(hedge.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	nothing := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	for i := range 3 * 4096 {
		require.NoError(t, in.Unary()(t.Context(), fmt.Sprintf("/made.up/M%d", i), nil, nil, nil, nothing))
	}
	assert.Equal(t, 4096, bytes.Count(log.Bytes(), []byte("\n")))
}
