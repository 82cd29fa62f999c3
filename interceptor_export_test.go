//go:build !hedge_nogrpc

package hedge

// MaxRules is how many methods an Interceptor keeps the rules of.
const MaxRules = maxRules

// KnownMethods returns how many methods in keeps the rules of.
func KnownMethods(in *Interceptor) (n int) {
	in.rules.known.Range(func(any, any) bool { n++; return true })
	return n
}
