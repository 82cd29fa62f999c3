// Package grpc has the tests of interceptors. With the build tag hedge_nogrpc it is empty.
package grpc
