package httpcall

import (
	"net/http"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
)

// Values of the features of a latency key, a bit set. Bits 0 to 3 hold the major HTTP version of responses to requests
// with the scheme http, and bits 4 to 7 the version for the scheme https. Only responses to primaries set the version.
// Three more bits are flags.
const (
	unknownVersion = 0 // no primary has got a response
	http1          = 1
	http2          = 2
	unversioned    = 14 // responses have no version, or a version above 13; for example from a RoundTripper that needs no network
	mixedVersions  = 15 // responses have had different versions, for example because several hosts share the key; never changes again

	behindLimiter       = 1 << 8  // the most recent response came from a server with a Limiter
	primariesReportConn = 1 << 9  // the RoundTripper of primaries calls the hooks of httptrace
	hedgesReportConn    = 1 << 10 // the separate RoundTripper of hedges calls the hooks of httptrace
)

// A hostVersion is the HTTP version that the servers of one latency key use for one URL scheme.
type hostVersion struct {
	version int32 // major version, unknownVersion, unversioned or mixedVersions
	shift   int32 // position of the version in the features of the latency key, in bits
}

// hostVersionOf returns the HTTP version that latency key k stores for a URL scheme. It is unknownVersion before the
// first response.
func hostVersionOf(k *policy.Key, scheme string) (v hostVersion) {
	if scheme == "https" {
		v.shift = 4
	}
	v.version = k.Features.Load() >> v.shift & mixedVersions
	return v
}

// mayBeHTTP1 reports whether the next request may be sent over HTTP/1.1. The result is false only if all responses so
// far had another version.
func (v hostVersion) mayBeHTTP1() bool {
	return v.version == http1 || v.version == unknownVersion || v.version == mixedVersions
}

// recordHostFeatures stores in latency key k the HTTP version of resp, and whether its server has a Limiter. It does
// not store the version if resp is the response to a hedge, because another host may have sent that response.
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

// mergeVersions returns the HTTP version to store after a response, where known is the stored version and answered is
// the version of the response. A response without a version, such as a cached response, does not change a known
// version. A response with a different version results in mixedVersions.
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

// isBehindLimiter reports whether the most recent response for latency key k came from a server with a Limiter, which
// limits the number of concurrent requests.
func isBehindLimiter(k *policy.Key) bool { return k.Features.Load()&behindLimiter != 0 }
