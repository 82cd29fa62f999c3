package grpcattempt

import (
	"reflect"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// An outputKind says which variable of the caller a call option writes to.
type outputKind int

const (
	unknownOutput outputKind = iota // the option cannot be copied safely
	noOutput                        // the option writes to no variable
	headerOutput                    // the option is [grpc.Header], or contains it
	trailerOutput                   // the option is [grpc.Trailer], or contains it
	peerOutput                      // the option is [grpc.Peer], or contains it
	codecChoice                     // the option writes to no variable, and chooses the codec of the reply
)

// grpcOptions classifies the call options of package grpc by type name. Options whose type is missing here cannot be
// copied. OnFinishCallOption is listed although [SplitFinishFuncs] removes it, because the options are classified
// before that.
var grpcOptions = map[string]outputKind{
	"HeaderCallOption": headerOutput, "TrailerCallOption": trailerOutput, "PeerCallOption": peerOutput,

	"EmptyCallOption": noOutput, "StaticMethodCallOption": noOutput, "FailFastCallOption": noOutput, "OnFinishCallOption": noOutput,
	"MaxRecvMsgSizeCallOption": noOutput, "MaxSendMsgSizeCallOption": noOutput, "MaxRetryRPCBufferSizeCallOption": noOutput,
	"AuthorityOverrideCallOption": noOutput, "PerRPCCredsCallOption": noOutput, "CompressorCallOption": noOutput, "acceptCompressorsCallOption": noOutput,
	"ContentSubtypeCallOption": codecChoice, "ForceCodecCallOption": codecChoice, "ForceCodecV2CallOption": codecChoice, "CustomCodecCallOption": codecChoice,
}

// An optionType describes how to copy options of one Go type that implements [grpc.CallOption].
type optionType struct {
	output outputKind
	path   []int // index path of the embedded option of package grpc, see [reflect.Value.FieldByIndex]; nil: the type is itself of package grpc
}

// optionTypes caches the optionType of each [reflect.Type] of a call option, because the classification uses reflection.
var optionTypes sync.Map

// AreOptionsCloneable reports whether each attempt can get copies of all options that write to the attempt's own
// variables. If not, the call cannot be hedged.
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

// isCommonOption reports whether o has one of the most frequent types. Options of these types can be copied and choose
// no codec, so they need no classification by reflection.
func isCommonOption(o grpc.CallOption) bool {
	switch o.(type) {
	case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption, grpc.OnFinishCallOption,
		grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption:
		return true
	}
	return false
}

// choosesCodec reports whether replies are decoded by another codec than grpc's default. Another codec may keep the
// content of a reply, and may write to memory that the reply refers to. The caller must have checked that the options
// are cloneable.
func choosesCodec(opts []grpc.CallOption) bool {
	return isDefaultCodecReplaced() || haveCodecOption(opts)
}

// haveCodecOption reports whether one of the options chooses the codec of the reply. The caller must have checked that the
// options are cloneable.
func haveCodecOption(opts []grpc.CallOption) bool {
	for _, o := range opts {
		if !isCommonOption(o) && optionTypeOf(o).output == codecChoice {
			return true
		}
	}
	return false
}

// optionTypeOf returns the optionType for the type of o, from the cache if possible.
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

// classifyOption determines how options of the type t can be copied. The type may be an option of package grpc, point
// to such an option, or embed such an option.
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

// lookupGRPCOption returns the outputKind of t. The result ok is true if t is a type of package grpc.
func lookupGRPCOption(t reflect.Type) (outputKind, bool) {
	if t.PkgPath() != "google.golang.org/grpc" {
		return unknownOutput, false
	}
	return grpcOptions[t.Name()], true
}

// callOptionType is the type [grpc.CallOption].
var callOptionType = reflect.TypeFor[grpc.CallOption]()

// findEmbeddedOptions returns the optionType of each call option that the struct type t embeds, at any depth. The
// argument path is the index path from the outermost struct to t.
//
// The output is unknownOutput for embedded options that a copy of t cannot replace. These are options in unexported
// fields, and options of other packages that are embedded as pointers or interfaces.
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
		case grpcs, f.Type.Implements(callOptionType) && (pointer || own.Kind() == reflect.Interface):
			all = append(all, optionType{})
		default:
			all = append(all, findEmbeddedOptions(own, at)...)
		}
	}
	return all
}

// CloneOptions returns copies of the caller's options for one attempt. The copies write to variables of the attempt. If
// the attempt wins, the functions in deliver must be called: they copy the header, trailer and peer to the caller's
// variables. The caller must have checked that the options are cloneable.
func CloneOptions(opts []grpc.CallOption) (own []grpc.CallOption, deliver []func()) {
	own = make([]grpc.CallOption, 0, len(opts)+1) // room for one more option of the caller of CloneOptions
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
// deliver copies that variable to the caller's variable. Both results are nil if o is another option.
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

// cloneEmbeddedOption copies an option that points to, or embeds, a header, trailer or peer option, as
// cloneOutputOption does. The copy own receives the output of one attempt. deliver copies that output to the variable
// of o, the caller's option.
//
// The copy has the same type as o, because an interceptor may look for that type. Both results are nil if o contains no
// such option.
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

// SplitFinishFuncs separates the [grpc.OnFinish] options from the other options. The result rest has the other options,
// and finish has the functions of the removed options. These functions must be called for the winner only, not for
// each attempt.
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
