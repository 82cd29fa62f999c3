//go:build !hedge_nogrpc

package hedge_test

import (
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
)

// What tests of gRPC share with those of internal/livetests.
var (
	serveGRPC  = grpctest.Serve
	dial       = grpctest.Dial
	overMemory = grpctest.OverMemory
	newGate    = doubles.NewGate
)
