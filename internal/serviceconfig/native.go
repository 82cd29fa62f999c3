package serviceconfig

import (
	"strconv"
	"strings"
)

// NativeHedgingSince is the first version of grpc-go that implements hedging policies itself. It is "" because no
// version does so yet. From that version on, this module must not hedge methods that have a hedging policy.
//
// TestGRPCIgnoresWhatWeObey fails when the value must be set. Only tests may change it at run time.
var NativeHedgingSince = ""

// HasNativeHedging reports whether the given version of grpc-go, such as "1.70.0", implements hedging policies itself.
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
