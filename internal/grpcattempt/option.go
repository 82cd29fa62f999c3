package grpcattempt

import (
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// An outputKind is the kind of variable that a call option writes to.
type outputKind int

const (
	unknownOutput outputKind = iota // the option is not known to be divisible
	noOutput
	header
	trailer
	peerInfo
	codecChoice // no output; the option chooses the codec that decodes replies
)

// grpcOptions has the call options of package grpc by the names of their types, and the target of each. A type that is missing is unknown. OnFinish
// is honoured only if it is a value of its own type, which SplitFinishFuncs finds.
var grpcOptions = map[string]outputKind{
	"HeaderCallOption": header, "TrailerCallOption": trailer, "PeerCallOption": peerInfo,

	"EmptyCallOption": noOutput, "StaticMethodCallOption": noOutput, "FailFastCallOption": noOutput, "OnFinishCallOption": noOutput,
	"MaxRecvMsgSizeCallOption": noOutput, "MaxSendMsgSizeCallOption": noOutput, "MaxRetryRPCBufferSizeCallOption": noOutput,
	"AuthorityOverrideCallOption": noOutput, "PerRPCCredsCallOption": noOutput, "CompressorCallOption": noOutput, "acceptCompressorsCallOption": noOutput,
	"ContentSubtypeCallOption": codecChoice, "ForceCodecCallOption": codecChoice, "ForceCodecV2CallOption": codecChoice, "CustomCodecCallOption": codecChoice,
}

// An optionType is the classification of a Go type of [grpc.CallOption]. The map optionTypes caches it.
type optionType struct {
	output outputKind
	path   []int // to the type of grpc that it embeds; none: it is that type
}

var optionTypes sync.Map // reflect.Type to optionType

// AreOptionsCloneable reports whether each attempt can have the options with targets of its own.
func AreOptionsCloneable(opts []grpc.CallOption) bool {
	for _, o := range opts {
		if isCommon(o) {
			continue
		}
		if kind := optionTypeOf(o); kind.output == unknownOutput || reflect.ValueOf(o).Kind() == reflect.Pointer && reflect.ValueOf(o).IsNil() {
			return false
		}
	}
	return true
}

// isCommon reports whether o is of one of the types that most calls use. None of them chooses a codec, and all are divisible.
func isCommon(o grpc.CallOption) bool {
	switch o.(type) {
	case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption, grpc.OnFinishCallOption,
		grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
		return true
	}
	return false
}

// choosesCodec reports whether the options, which are divisible, choose a codec other than the default of grpc for replies. It may keep the content
// of a reply, and write to memory that the reply refers to.
func choosesCodec(opts []grpc.CallOption) bool {
	return replacedCodec() || slices.ContainsFunc(opts, func(o grpc.CallOption) bool { return !isCommon(o) && optionTypeOf(o).output == codecChoice })
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

// classifyOption finds the type of package grpc that t, or the type that it points to, is or embeds.
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

// lookupGRPCOption reports whether t is a type of call options of package grpc, and its target.
func lookupGRPCOption(t reflect.Type) (outputKind, bool) {
	if t.PkgPath() != "google.golang.org/grpc" {
		return unknownOutput, false
	}
	return grpcOptions[t.Name()], true
}

var callOption = reflect.TypeFor[grpc.CallOption]()

// findEmbeddedOptions returns the types of call options that t embeds. Types of other packages, and types that cannot be replaced in a copy of t, are unknown.
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

// CloneOptions returns the caller's options, which are divisible, with new targets for an attempt. The functions in deliver copy header, trailer and
// peer to the targets of the caller.
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

// cloneOutputOption returns a copy of an option that writes its result through a pointer (Header, Trailer, Peer) with a destination of its own, and a
// function that copies the result to the caller's. It returns nil if o is of another type.
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

// cloneEmbeddedOption is cloneOutputOption for an option that points to, or embeds, a type with a target. The copy has the type of o, which an interceptor below may look for.
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

// SplitFinishFuncs removes the options of OnFinish and returns their functions, which are called once for all attempts.
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
