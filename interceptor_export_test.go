//go:build !hedge_nogrpc

package hedge

// MaxRules is how many methods an Interceptor keeps the rules of.
const MaxRules = maxRules

// KnownMethods returns how many methods in keeps the rules of.
func KnownMethods(in *Interceptor) (n int) {
	in.book.All().Methods.Range(func(any, any) bool { n++; return true })
	return n
}

// Obeys reports whether a version of grpc-go obeys hedging policies, if versions do since the other one.
var Obeys = obeys

// StandAside returns an Interceptor beside a grpc-go that obeys hedging policies itself.
func StandAside(config string) *Interceptor {
	in := NewInterceptor(WithServiceConfig(config))
	in.rules.aside = true
	return in
}
