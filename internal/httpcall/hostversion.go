package httpcall

import (
	"net/http"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
)

// Bits of the features of a latency key. Bits 0 to 3 hold the major HTTP version of responses to http requests, and
// bits 4 to 7 the version of responses to https requests. Only responses to primaries count. Three more bits are flags.
const (
	unknownVersion = 0 // no primary has got a response
	http1          = 1
	http2          = 2
	unversioned    = 14 // responses have no version or a version above 13, for example those of RoundTrippers in memory
	mixedVersions  = 15 // responses have had several versions, for example because hosts share the key; final

	behindLimiter       = 1 << 8  // the last response came from a server with a Limiter
	primariesReportConn = 1 << 9  // primaries call the hooks of httptrace
	hedgesReportConn    = 1 << 10 // hedges with a transport of their own call the hooks of httptrace
)

// A hostVersion is the HTTP version of the servers of one latency key, for one URL scheme.
type hostVersion struct {
	version int32
	shift   int32 // position of the version in the features of the key, in bits
}

// hostVersionOf returns the HTTP version that is stored in the features of k for a scheme.
func hostVersionOf(k *policy.Key, scheme string) (v hostVersion) {
	if scheme == "https" {
		v.shift = 4
	}
	v.version = k.Features.Load() >> v.shift & mixedVersions
	return v
}

// mayBeHTTP1 reports whether the next request may use HTTP/1.1.
func (v hostVersion) mayBeHTTP1() bool {
	return v.version == http1 || v.version == unknownVersion || v.version == mixedVersions
}

// recordHostFeatures stores the HTTP version of a response in the features of k, and whether the server has a Limiter.
// It does not store the version of a response to a hedge, which another host may have sent.
func (v hostVersion) recordHostFeatures(k *policy.Key, resp *http.Response, isHedge bool) {
	before := k.Features.Load()
	features := before &^ behindLimiter
	if len(resp.Header[limit.LimitHeader]) > 0 {
		features |= behindLimiter
	}
	if known := before >> v.shift & mixedVersions; !isHedge {
		features = features&^(mixedVersions<<v.shift) | mergeVersions(known, int32(resp.ProtoMajor))<<v.shift
	}
	if features != before {
		k.Features.Store(features)
	}
}

// mergeVersions returns the version to store for a host with the stored version known, after a response with the
// version answered. A response without a version, such as a cached response, does not change a known version.
func mergeVersions(known, answered int32) int32 {
	if answered <= 0 || answered > unversioned {
		answered = unversioned
	}
	switch {
	case known == unknownVersion || known == unversioned:
		return answered
	case answered == unversioned || answered == known:
		return known
	}
	return mixedVersions
}

// isBehindLimiter reports whether the last response came from a server with a Limiter.
func isBehindLimiter(k *policy.Key) bool { return k.Features.Load()&behindLimiter != 0 }
