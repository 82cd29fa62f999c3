package httpcall

import (
	"net/http"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
)

// A key's tag has the major version of HTTP that primaries get their answers in, for http and for
// https: these may be two servers. Bits say that the last answer came from behind a [Limiter], and that
// attempts which got an answer have told of their connections: primaries, and hedges by a way of their own.
const (
	unknown     = 0 // no primary has been answered
	http1       = 1
	http2       = 2
	unversioned = 14 // answers have no version, as those of RoundTrippers in memory, or one above 13
	mixed       = 15 // several, as of hosts that share a key or were upgraded; it stays
	limited     = 1 << 8

	primariesTell = 1 << 9
	hedgesTell    = 1 << 10
)

// A hostVersion is the version of HTTP that a key's tag has for one scheme.
type hostVersion struct {
	version int32
	shift   int32 // of the version, in bits of the tag
}

func hostVersionOf(k *policy.Key, scheme string) (v hostVersion) {
	if scheme == "https" {
		v.shift = 4
	}
	v.version = k.Features.Load() >> v.shift & mixed
	return v
}

// mayBeHTTP1 reports whether a primary may go over HTTP/1.1.
func (v hostVersion) mayBeHTTP1() bool {
	return v.version == http1 || v.version == unknown || v.version == mixed
}

// recordHostFeatures stores the HTTP version that the host has answered in, and whether the answer came from behind a
// Limiter. The version of a hedge's answer is not stored: another host may have sent it.
func (v hostVersion) recordHostFeatures(k *policy.Key, resp *http.Response, isHedge bool) {
	before := k.Features.Load()
	tag := before &^ limited
	if len(resp.Header[limit.Header]) > 0 {
		tag |= limited
	}
	if known := before >> v.shift & mixed; !isHedge {
		tag = tag&^(mixed<<v.shift) | mergeVersions(known, int32(resp.ProtoMajor))<<v.shift
	}
	if tag != before {
		k.Features.Store(tag)
	}
}

// mergeVersions returns the version of a host that is known to have a version, and has answered in another one. An answer
// without a version, such as a cached response, changes no known version.
func mergeVersions(known, answered int32) int32 {
	if answered <= 0 || answered > unversioned {
		answered = unversioned
	}
	switch {
	case known == unknown || known == unversioned:
		return answered
	case answered == unversioned || answered == known:
		return known
	}
	return mixed
}

func behindLimiter(k *policy.Key) bool { return k.Features.Load()&limited != 0 }
