package serviceconfig

// Parsed returns how many configs of resolvers are known.
func Parsed() (n int) {
	parsed.Range(func(any, any) bool { n++; return true })
	return n
}
