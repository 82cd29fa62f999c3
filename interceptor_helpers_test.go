package hedge_test

import "github.com/gohedge/hedge/internal/grpctest"

// served is what the backends of tests take.
const served = 10 * ms

// What tests of gRPC share with those of internal/livetests.
var (
	serveGRPC  = grpctest.Serve
	dial       = grpctest.Dial
	overMemory = grpctest.OverMemory
)
