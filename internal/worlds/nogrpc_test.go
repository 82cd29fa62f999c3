//go:build hedge_nogrpc

package worlds_test

// newGRPCWorld panics: with hedge_nogrpc the package compiles, and worlds of gRPC cannot be played.
func newGRPCWorld(*draw) world { panic("built without gRPC") }
