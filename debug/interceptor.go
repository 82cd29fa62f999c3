//go:build !hedge_nogrpc

package debug

import "github.com/gohedge/hedge"

// What is here is all that the package knows of gRPC.
var _ Source = (*hedge.Interceptor)(nil)
