package limit

// exemptMethods are the gRPC methods that need no slot by default. They query the state of the server and are cheap, and some
// of their streams last as long as the client. If a busy server did not answer them, its clients would consider it dead.
var exemptMethods = map[string]bool{
	"/grpc.health.v1.Health/Check": true,
	"/grpc.health.v1.Health/Watch": true,
	"/grpc.health.v1.Health/List":  true,

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      true,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
}

// IsExemptMethod reports whether calls of the gRPC method, given as "/pkg.Service/Method", need no slot by default.
func IsExemptMethod(method string) bool { return exemptMethods[method] }
