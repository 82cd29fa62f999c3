package limit

import "strings"

// withoutPlace are the gRPC services that a Limiter lets pass. They ask about the server, do little, and some
// of their streams last as long as their client. A busy server that does not answer them is taken for a dead one.
var withoutPlace = [...]string{
	"/grpc.health.v1.Health/",
	"/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/",
	"/grpc.channelz.v1.Channelz/",
}

// NeedsNoPlace reports whether a Limiter lets calls of a gRPC method pass.
func NeedsNoPlace(method string) bool {
	for _, service := range withoutPlace {
		if strings.HasPrefix(method, service) {
			return true
		}
	}
	return false
}
