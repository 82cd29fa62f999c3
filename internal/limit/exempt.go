package limit

// exemptMethods are the gRPC methods that need no place by default. They ask about the server, do little, and some of their streams last as
// long as their client. A busy server that does not answer them is taken for a dead server.
var exemptMethods = map[string]bool{
	"/grpc.health.v1.Health/Check": true,
	"/grpc.health.v1.Health/Watch": true,
	"/grpc.health.v1.Health/List":  true,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
}

// IsExemptMethod reports whether calls of a gRPC method, "/pkg.Service/Method", need no place by default.
func IsExemptMethod(method string) bool { return exemptMethods[method] }
