package grpcattempt

import (
	"reflect"
	"slices"

	"google.golang.org/grpc"
)

// WithoutDefaultOptions removes the default call options of cc, the caller's connection, from the options of a call. It
// is used for a hedge over another connection, which has its own default options.
//
// It keeps options that write to variables of the caller, such as [grpc.Trailer], because their results do not depend
// on the connection.
func WithoutDefaultOptions(opts []grpc.CallOption, cc *grpc.ClientConn) []grpc.CallOption {
	defaults := defaultOptions(cc)
	if len(defaults) == 0 {
		return opts
	}
	opts = slices.Clone(opts)
	for _, given := range defaults {
		at := slices.IndexFunc(opts, func(o grpc.CallOption) bool { return isSameOption(given, o) })
		if at >= 0 && !writesOutput(opts[at]) {
			opts = slices.Delete(opts, at, at+1)
		}
	}
	return opts
}

// isSameOption reports whether two options are equal. Two options of a type that is not comparable, such as
// [grpc.OnFinish], count as equal.
//
// The caller must therefore use the first match in the options of a call. That is the default option, because grpc puts
// the default options first.
func isSameOption(a, b grpc.CallOption) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && (!reflect.ValueOf(a).Comparable() || a == b)
}

// writesOutput reports whether an option writes a header, a trailer or a peer to a variable of the caller.
func writesOutput(o grpc.CallOption) bool {
	t := optionTypeOf(o).output
	return t == headerOutput || t == trailerOutput || t == peerOutput
}

// defaultOptions returns the call options that cc got from [grpc.WithDefaultCallOptions]. It reads an unexported field,
// because package grpc has no function that returns them. It returns nil if cc is nil or the field does not exist.
func defaultOptions(cc *grpc.ClientConn) []grpc.CallOption {
	if cc == nil {
		return nil
	}
	dialled := reflect.ValueOf(cc).Elem().FieldByName("dopts")
	if dialled.Kind() != reflect.Struct {
		return nil
	}
	options := dialled.FieldByName("callOptions")
	if !options.IsValid() || options.Type() != reflect.TypeFor[[]grpc.CallOption]() {
		return nil
	}
	return *(*[]grpc.CallOption)(options.Addr().UnsafePointer()) // not written to after the connection was made
}
