package serviceconfig

import (
	"strconv"
	"strings"
)

// ObeyedSince is the version of grpc-go from which on it obeys hedging policies itself, which then are left to it; "": none does.
// TestGRPCIgnoresWhatWeObey fails when it is time to name one. Only tests set it.
var ObeyedSince = ""

// IsObeyedBy reports whether a version of grpc-go obeys hedging policies itself.
func IsObeyedBy(version string) bool {
	if ObeyedSince == "" {
		return false
	}
	a, b := strings.Split(version, "."), strings.Split(ObeyedSince, ".")
	for i := range min(len(a), len(b)) {
		x, _ := strconv.Atoi(strings.TrimRight(a[i], "-dev"))
		y, _ := strconv.Atoi(b[i])
		if x != y {
			return x > y
		}
	}
	return true
}
