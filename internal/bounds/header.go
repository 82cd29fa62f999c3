package bounds

import (
	"slices"
	"strings"
)

// OwnHeader says what a name would have to be to be that of a header of one's own in requests, "" if it is one: a token (RFC 9110, section 5.1) that
// means nothing in HTTP, so that to set it changes nothing else. The empty name is allowed.
func OwnHeader(name string) (want string) {
	switch lower := strings.ToLower(name); {
	case strings.IndexFunc(name, func(r rune) bool { return !isToken(r) }) >= 0:
		return "the name of a header"
	case slices.Contains(taken, lower), slices.ContainsFunc(takenPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }):
		return "the name of a header that HTTP leaves free"
	}
	return ""
}

func isToken(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// taken are the names to which HTTP gives a meaning.
var taken = []string{
	// RFC 9110, section 18.4, of requests and of answers
	"accept", "allow", "authentication-info", "authorization", "connection",
	"date", "etag", "expect", "from", "host", "last-modified", "location", "max-forwards", "range", "referer", "retry-after", "server", "te", "trailer",
	"upgrade", "user-agent", "vary", "via", "www-authenticate", "*",
	"age", "cache-control", "expires", "pragma", "warning", // RFC 9111
	"close", "mime-version", "transfer-encoding", // RFC 9112
	"keep-alive", "http2-settings", // of one connection
	"cookie", "set-cookie", // RFC 6265
	"idempotency-key", "x-idempotency-key", // net/http sends such requests again
	"alt-used", "cdn-loop", "client-cert", "client-cert-chain", "early-data", "forwarded", "last-event-id", "origin", "priority", "x-real-ip", // read by servers and proxies
	"dav", "depth", "destination", "lock-token", "overwrite", "timeout", // RFC 4918
	"a-im", "available-dictionary", "dictionary-id", "dnt", "dpop", "digest", "im", "link", "negotiate", "prefer", "repr-digest", "save-data", "service-worker",
	"signature", "signature-input", "slug", "soapaction", "tcn", "upgrade-insecure-requests", // of other registered names, those that servers act on
	"baggage", "traceparent", "tracestate", // of tracing
	"x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url", // in the place of method and target
}

// takenPrefixes are those of families of names: Accept-Encoding, Content-Length, If-Match, Proxy-Connection, Sec-WebSocket-Key, Want-Digest. Those of
// object stores are to be signed: with one that is not, a server refuses the request.
var takenPrefixes = []string{"accept-", "access-control-", "content-", "if-", "proxy-", "sec-", "want-", "x-amz-", "x-forwarded-", "x-goog-", "x-ms-"}
