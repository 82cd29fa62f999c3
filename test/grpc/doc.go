// Package grpc contains the tests of interceptors. It is empty with the build tag hedge_nogrpc.
package grpc
