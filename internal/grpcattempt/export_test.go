package grpcattempt

// IsClassified reports whether an option type of package grpc is classified.
func IsClassified(name string) bool { return grpcOptions[name] != unknownOutput }
