package grpcattempt

import (
	"reflect"
	"slices"

	"google.golang.org/grpc"
)

// WithoutDefaultOptions returns the options of a call over cc without the default call options of cc, for a hedge over another connection.
// Options that write to a target of the caller stay: the call has a header, a trailer and a peer over any connection.
func WithoutDefaultOptions(opts []grpc.CallOption, cc *grpc.ClientConn) []grpc.CallOption {
	defaults := defaultOptions(cc)
	if len(defaults) == 0 {
		return opts
	}
	opts = slices.Clone(opts)
	for _, given := range defaults {
		at := slices.IndexFunc(opts, func(o grpc.CallOption) bool { return isSameOption(given, o) })
		if at >= 0 && !hasOutput(opts[at]) {
			opts = slices.Delete(opts, at, at+1)
		}
	}
	return opts
}

// isSameOption reports whether two options are equal (==). Options of a type that cannot be compared, such as [grpc.OnFinish], count as equal if they
// have the same type: grpc puts the default options in front of those of the call.
func isSameOption(a, b grpc.CallOption) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && (!reflect.ValueOf(a).Comparable() || a == b)
}

// hasOutput reports whether an option writes to a variable of the caller.
func hasOutput(o grpc.CallOption) bool {
	t := optionTypeOf(o).output
	return t == header || t == trailer || t == peerInfo
}

// defaultOptions returns the options that cc was given by [grpc.WithDefaultCallOptions]. Package grpc exports no way to them, and
// hands them to interceptors mixed with the options of the call. It returns none if cc is nil, or if grpc keeps them elsewhere.
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
