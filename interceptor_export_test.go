package hedge

// ReadsByName is readsByName for its fuzz test.
var ReadsByName = readsByName

// WritingWords are the words that keep a method from being hedged by its name.
var WritingWords = writingWords

// MaxRules is how many methods an Interceptor keeps the rules of.
const MaxRules = maxRules

// KnownMethods returns how many methods in keeps the rules of.
func KnownMethods(in *Interceptor) (n int) {
	in.rules.Range(func(any, any) bool { n++; return true })
	return n
}
