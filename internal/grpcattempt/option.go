package grpcattempt

import (
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// An outputKind classifies a call option by the variable of the caller that it writes to.
type outputKind int

const (
	unknownOutput outputKind = iota // the option is not known to be cloneable
	noOutput
	header
	trailer
	peerInfo
	codecChoice // no variable; the option chooses the codec of the reply
)

// grpcOptions classifies the call options of package grpc by the name of their type. A type that is missing is not
// cloneable. [SplitFinishFuncs] removes options of the type OnFinishCallOption before.
var grpcOptions = map[string]outputKind{
	"HeaderCallOption": header, "TrailerCallOption": trailer, "PeerCallOption": peerInfo,

	"EmptyCallOption": noOutput, "StaticMethodCallOption": noOutput, "FailFastCallOption": noOutput, "OnFinishCallOption": noOutput,
	"MaxRecvMsgSizeCallOption": noOutput, "MaxSendMsgSizeCallOption": noOutput, "MaxRetryRPCBufferSizeCallOption": noOutput,
	"AuthorityOverrideCallOption": noOutput, "PerRPCCredsCallOption": noOutput, "CompressorCallOption": noOutput, "acceptCompressorsCallOption": noOutput,
	"ContentSubtypeCallOption": codecChoice, "ForceCodecCallOption": codecChoice, "ForceCodecV2CallOption": codecChoice, "CustomCodecCallOption": codecChoice,
}

// An optionType classifies a Go type that implements [grpc.CallOption].
type optionType struct {
	output outputKind
	path   []int // index path of the embedded type of package grpc; nil: the type is of package grpc itself
}

var optionTypes sync.Map // reflect.Type to optionType

// AreOptionsCloneable reports whether each attempt can have copies of the options that write to variables of its own.
func AreOptionsCloneable(opts []grpc.CallOption) bool {
	for _, o := range opts {
		if isCommonOption(o) {
			continue
		}
		if kind := optionTypeOf(o); kind.output == unknownOutput || reflect.ValueOf(o).Kind() == reflect.Pointer && reflect.ValueOf(o).IsNil() {
			return false
		}
	}
	return true
}

// isCommonOption reports whether o has one of the most frequent types. It is a fast path: these types are cloneable and
// choose no codec.
func isCommonOption(o grpc.CallOption) bool {
	switch o.(type) {
	case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption, grpc.OnFinishCallOption,
		grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
		return true
	}
	return false
}

// choosesCodec reports whether replies are decoded by another codec than grpc's default. Such a codec may keep the
// content of a reply, and write to memory that the reply refers to. The options must be cloneable.
func choosesCodec(opts []grpc.CallOption) bool {
	return replacedCodec() || slices.ContainsFunc(opts, func(o grpc.CallOption) bool { return !isCommonOption(o) && optionTypeOf(o).output == codecChoice })
}

func optionTypeOf(o grpc.CallOption) optionType {
	t := reflect.TypeOf(o)
	if t == nil {
		return optionType{}
	}
	if known, ok := optionTypes.Load(t); ok {
		return known.(optionType)
	}
	kind := classifyOption(t)
	optionTypes.Store(t, kind)
	return kind
}

// classifyOption classifies t by the type of package grpc that it is, points to, or embeds.
func classifyOption(t reflect.Type) optionType {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if kind, ok := lookupGRPCOption(t); ok {
		return optionType{output: kind}
	}
	found := findEmbeddedOptions(t, nil)
	if len(found) != 1 {
		return optionType{}
	}
	return found[0]
}

// lookupGRPCOption returns the output of t, and reports whether t is a type of package grpc.
func lookupGRPCOption(t reflect.Type) (outputKind, bool) {
	if t.PkgPath() != "google.golang.org/grpc" {
		return unknownOutput, false
	}
	return grpcOptions[t.Name()], true
}

var callOption = reflect.TypeFor[grpc.CallOption]()

// findEmbeddedOptions returns the classification of each call option that t embeds, at any depth. The path is the index
// path to t. Options of other packages, and options that cannot be replaced in a copy of t, are unknown.
func findEmbeddedOptions(t reflect.Type, path []int) (all []optionType) {
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.Anonymous {
			continue
		}
		at, own := append(slices.Clone(path), i), f.Type
		pointer := own.Kind() == reflect.Pointer
		if pointer {
			own = own.Elem()
		}
		kind, grpcs := lookupGRPCOption(own)
		switch {
		case grpcs && f.IsExported():
			all = append(all, optionType{kind, at})
		case grpcs, f.Type.Implements(callOption) && (pointer || own.Kind() == reflect.Interface):
			all = append(all, optionType{})
		default:
			all = append(all, findEmbeddedOptions(own, at)...)
		}
	}
	return all
}

// CloneOptions returns copies of the caller's options for one attempt, which write to variables of the attempt. The
// functions in deliver copy the header, trailer and peer to the caller's variables. The options must be cloneable.
func CloneOptions(opts []grpc.CallOption) (own []grpc.CallOption, deliver []func()) {
	own = make([]grpc.CallOption, 0, len(opts)+1) // room for one more
	for _, o := range opts {
		mine, copied := cloneOutputOption(o)
		if copied == nil {
			if mine, copied = cloneEmbeddedOption(o); copied == nil {
				mine = o
			}
		}
		own = append(own, mine)
		if copied != nil {
			deliver = append(deliver, copied)
		}
	}
	return own, deliver
}

// cloneOutputOption returns a copy of a header, trailer or peer option that writes to a new variable. The function
// deliver copies the result to the caller's variable. Both are nil if o has another type.
func cloneOutputOption(o any) (own grpc.CallOption, deliver func()) {
	switch o := o.(type) {
	case grpc.HeaderCallOption:
		md := new(metadata.MD)
		return grpc.Header(md), func() { *o.HeaderAddr = *md }
	case grpc.TrailerCallOption:
		md := new(metadata.MD)
		return grpc.Trailer(md), func() { *o.TrailerAddr = *md }
	case grpc.PeerCallOption:
		p := new(peer.Peer)
		return grpc.Peer(p), func() { *o.PeerAddr = *p }
	}
	return nil, nil
}

// cloneEmbeddedOption is like cloneOutputOption for an option that points to, or embeds, a header, trailer or peer
// option. The copy has the type of o, because an interceptor may look for that type.
func cloneEmbeddedOption(o grpc.CallOption) (own grpc.CallOption, deliver func()) {
	kind := optionTypeOf(o)
	if kind.output == unknownOutput || kind.output == noOutput || kind.output == codecChoice {
		return nil, nil
	}
	from := reflect.ValueOf(o)
	pointer := from.Kind() == reflect.Pointer
	if pointer {
		from = from.Elem()
	}
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	inner := to.Elem().FieldByIndex(kind.path)
	if inner.Kind() == reflect.Pointer {
		if inner.IsNil() {
			return nil, nil // grpc panics with it in every attempt
		}
		mine, copied := cloneOutputOption(inner.Elem().Interface())
		fresh := reflect.New(inner.Type().Elem())
		fresh.Elem().Set(reflect.ValueOf(mine))
		inner.Set(fresh)
		deliver = copied
	} else {
		mine, copied := cloneOutputOption(inner.Interface())
		inner.Set(reflect.ValueOf(mine))
		deliver = copied
	}
	if !pointer {
		to = to.Elem()
	}
	return to.Interface().(grpc.CallOption), deliver
}

// SplitFinishFuncs returns the options without those of [grpc.OnFinish], and the functions of the removed options. The
// functions must be called once per call, not once per attempt.
func SplitFinishFuncs(opts []grpc.CallOption) (rest []grpc.CallOption, finish []func(error)) {
	rest = opts
	for i, o := range opts {
		f, ok := o.(grpc.OnFinishCallOption)
		if ok && finish == nil {
			rest = slices.Clone(opts[:i])
		}
		switch {
		case ok:
			finish = append(finish, f.OnFinish)
		case finish != nil:
			rest = append(rest, o)
		}
	}
	return rest, finish
}
