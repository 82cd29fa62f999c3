package serviceconfig

import (
	"strconv"
	"strings"
)

// NativeHedgingSince is the first version of grpc-go that implements hedging policies, or "" if there is none. From
// this version on, grpc-go hedges methods with a policy. TestGRPCIgnoresWhatWeObey fails when the value must be set.
// Otherwise only tests change it.
var NativeHedgingSince = ""

// HasNativeHedging reports whether the given version of grpc-go implements hedging policies.
func HasNativeHedging(version string) bool {
	if NativeHedgingSince == "" {
		return false
	}
	a, b := strings.Split(version, "."), strings.Split(NativeHedgingSince, ".")
	for i := range min(len(a), len(b)) {
		x, _ := strconv.Atoi(strings.TrimRight(a[i], "-dev"))
		y, _ := strconv.Atoi(b[i])
		if x != y {
			return x > y
		}
	}
	return true
}
