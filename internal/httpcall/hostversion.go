package httpcall

import (
	"net/http"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
)

// The features of a latency key hold the major version of HTTP in the responses to primaries, in four bits for http and four for https, which may be
// different servers. Three more bits say that the last response came from behind a Limiter, and that attempts with a response have reported their
// connection: primaries, and hedges that use the transport for hedges.
const (
	unknownVersion = 0 // no primary has a response
	http1          = 1
	http2          = 2
	unversioned    = 14 // responses have no version, as from RoundTrippers in memory, or a version above 13
	mixedVersions  = 15 // responses have several versions, as from hosts that share a key; it stays
	behindLimiter  = 1 << 8

	primariesReportConn = 1 << 9
	hedgesReportConn    = 1 << 10
)

// A hostVersion is the HTTP version that the features of a key hold for one scheme.
type hostVersion struct {
	version int32
	shift   int32 // position of the version in the features, in bits
}

// hostVersionOf returns the HTTP version of a key for a scheme.
func hostVersionOf(k *policy.Key, scheme string) (v hostVersion) {
	if scheme == "https" {
		v.shift = 4
	}
	v.version = k.Features.Load() >> v.shift & mixedVersions
	return v
}

// mayBeHTTP1 reports whether a primary may use HTTP/1.1.
func (v hostVersion) mayBeHTTP1() bool {
	return v.version == http1 || v.version == unknownVersion || v.version == mixedVersions
}

// recordHostFeatures stores the HTTP version of a response, and whether it came from behind a Limiter. The version of the response to a hedge is not
// stored: another host may have sent it.
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

// mergeVersions returns the new version of a host that had the version known and has sent a response with the version answered. A response without a
// version, such as a cached one, changes no known version.
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

// isBehindLimiter reports whether the last response of the host came from behind a Limiter.
func isBehindLimiter(k *policy.Key) bool { return k.Features.Load()&behindLimiter != 0 }
