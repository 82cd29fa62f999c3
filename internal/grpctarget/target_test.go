package grpctarget_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge/internal/grpctarget"
)

func TestNameEqualsCanonicalTarget(t *testing.T) {
	var built resolver.Target
	found := manual.NewBuilderWithScheme("found")
	found.InitialState(resolver.State{})
	found.BuildCallback = func(target resolver.Target, _ resolver.ClientConn, _ resolver.BuildOptions) { built = target }
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	for _, test := range []struct {
		spelling, name string
		resolved       bool // by found
	}{
		{"orders:443", "dns:///orders:443", false},
		{"dns:orders:443", "dns:///orders:443", false},
		{"DNS:///orders:443", "dns:///orders:443", false},
		{"dns:///Orders:443", "dns:///Orders:443", false},
		{"dns:///orders.:443", "dns:///orders.:443", false},
		{"dns:///orders", "dns:///orders", false},
		{"dns://8.8.8.8/orders:443", "dns://8.8.8.8/orders:443", false},
		{"unix:/run/orders.sock", "unix:///run/orders.sock", false},
		{"unix:///run/orders.sock", "unix:///run/orders.sock", false},
		{"unix-abstract:orders", "unix-abstract:///orders", false},
		{"passthrough:///orders:443", "passthrough:///orders:443", false},
		{"found:///orders", "dns:///found:///orders", false},
		{"found:///orders", "found:///orders", true},
		{"found:orders", "found:///orders", true},
		{"found://registry/orders?zone=a", "found://registry/orders?zone=a", true},
		{"found://registry/orders?zone=b#part", "found://registry/orders?zone=b", true},
		{"found://user:secret@registry/orders?", "found://registry/orders", true},
	} {
		with := opts
		if test.resolved {
			with = append(with, grpc.WithResolvers(found))
		}
		for range 2 {
			cc, err := grpc.NewClient(test.spelling, with...)
			require.NoError(t, err, test.spelling)
			assert.Equal(t, test.name, grpctarget.Name(cc))
			assert.Equal(t, test.name, grpctarget.Name(cc), "what was asked for before")
			if cc.Connect(); test.resolved {
				assert.Equal(t, test.name, grpctarget.ResolverName(built))
			}
			require.NoError(t, cc.Close())
		}
	}
	dialled, err := grpc.Dial("orders:443", opts...) //lint:ignore SA1019 programs that have not changed to NewClient
	require.NoError(t, err)
	defer dialled.Close()
	assert.Equal(t, "passthrough:///orders:443", grpctarget.Name(dialled))
	assert.Empty(t, grpctarget.Name(nil))
}

func BenchmarkName(b *testing.B) {
	cc, err := grpc.NewClient("orders:443", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer cc.Close()
	for b.Loop() {
		_ = grpctarget.Name(cc)
	}
}
