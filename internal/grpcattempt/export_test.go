package grpcattempt

// Judged reports whether it is known of an option of grpc what it writes to.
func Judged(name string) bool { return grpcOptions[name] != unknownOutput }
