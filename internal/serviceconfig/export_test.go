package serviceconfig

// CountParsedConfigs returns the number of parsed configs in use.
func CountParsedConfigs() (n int) {
	parsedConfigs.Range(func(any, any) bool { n++; return true })
	return n
}
