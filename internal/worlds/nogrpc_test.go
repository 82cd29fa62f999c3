//go:build hedge_nogrpc

package worlds_test

// newGRPCScenario panics. With hedge_nogrpc the package compiles, and scenarios of gRPC cannot be played.
func newGRPCScenario(*generator) scenario { panic("built without gRPC") }
