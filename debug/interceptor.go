//go:build !hedge_nogrpc

package debug

import "github.com/gohedge/hedge"

// No other file of the package depends on gRPC.
var _ Source = (*hedge.Interceptor)(nil)
