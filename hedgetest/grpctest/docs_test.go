//go:build !hedge_nogrpc

package grpctest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/hedgetest/grpctest"
)

// register registers the service of docs/testing.md.
func register(s *grpc.Server) { testpb.RegisterTestServiceServer(s, new(service)) }

const method = testpb.TestService_UnaryCall_FullMethodName

func TestStalledCallIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := grpctest.NewServer(t, register)
		var calls hedgetest.Recorder
		in := hedge.NewInterceptor(hedge.WithObserver(&calls), hedge.WithMethods("/*"))
		conn := server.Dial(grpc.WithChainUnaryInterceptor(in.Unary()))
		hedgetest.Warm(t, in, 10*time.Millisecond, conn.Target(), method)
		server.At(1, hedgetest.Fault{Stall: true})
		_, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{})
		calls.Hedged(t, 1)
		require.NoError(t, err)
	})
}

func TestHealthServiceIsHedgedAsReviewed(t *testing.T) {
	in := hedge.NewInterceptor(hedge.WithMethods("/grpc.health.v1.Health/Check"))
	assert.Equal(t, `/grpc.health.v1.Health/Check  up to 2  WithMethods lists it
/grpc.health.v1.Health/List   up to 2  its name begins with List and holds no word that writes or takes
/grpc.health.v1.Health/Watch  once     its name begins with no word that reads
`, grpctest.Methods(t, in, "/grpc.health.*").String())
}
