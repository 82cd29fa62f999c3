package serviceconfig

import (
	"strconv"
	"strings"
)

// NativeHedgingSince is the first version of grpc-go that implements hedging policies; "": none does. From this version on, methods with a policy are
// left to grpc-go. TestGRPCIgnoresWhatWeObey fails when a version must be set. Otherwise only tests set it.
var NativeHedgingSince = ""

// HasNativeHedging reports whether a version of grpc-go implements hedging policies.
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
