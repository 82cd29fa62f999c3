package httpattempt

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// IsRepeatable reports whether two copies of req can be in flight at once, whatever its method: a request of an unknown kind is not. The URL is
// present; the body is absent or has a known length up to maxBody; there are no trailers; the header does not bind the request to a connection, see
// [HeaderTraits]; and there is no nonce or other credential for a single use. An event stream is repeatable only if streams is true.
func IsRepeatable(req *http.Request, h HeaderTraits, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil || len(req.TransferEncoding) > 0 {
		return false
	}
	if HasBody(req) && (req.ContentLength <= 0 || req.ContentLength > maxBody) {
		return false
	}
	return !h.bound && !isSingleUse(req.URL) && (streams || !h.stream)
}

// HeaderTraits are the traits of a header that decide whether the request is repeatable.
type HeaderTraits struct {
	Hedge  int  // number of the hedge that the request serves; 0: none
	bound  bool // the request is bound to one connection, to a single use, or to an agreement before its body
	stream bool // the request accepts an event stream
}

// AttemptHeaders are the names of the headers that have the number of a hedge. Own may be empty.
type AttemptHeaders struct{ Attempt, Own string }

// addField adds the traits of one header field. Names are compared without case, because net/http sends keys of a map as they are. Most names differ from
// each known name in length or initial letter, which is compared first.
func (h *HeaderTraits) addField(name string, values []string, marks *AttemptHeaders) {
	if name == "" {
		return
	}
	if equalFold(name, marks.Attempt) || equalFold(name, marks.Own) {
		h.Hedge = max(h.Hedge, race.HedgeNumber(values))
		return
	}
	if isNonce(name) {
		h.bound = true
		return
	}
	switch lengthAndInitial(name) {
	case lengthAndInitial("Accept"):
		h.stream = h.stream || equalFold(name, "Accept") && slices.ContainsFunc(values, isEventStream)
	case lengthAndInitial("Expect"):
		h.bound = h.bound || equalFold(name, "Expect") && len(values) > 0
	case lengthAndInitial("DPoP"): // RFC 9449
		h.bound = h.bound || equalFold(name, "DPoP")
	case lengthAndInitial("Signature-Input"): // RFC 9421
		h.bound = h.bound || equalFold(name, "Signature-Input") && slices.ContainsFunc(values, hasNonce)
	case lengthAndInitial("X-WSSE"):
		h.bound = h.bound || equalFold(name, "X-WSSE") && slices.ContainsFunc(values, hasNonce)
	case lengthAndInitial("Upgrade"):
		h.bound = h.bound || equalFold(name, "Upgrade") && len(values) > 0
	case lengthAndInitial("Connection"):
		h.bound = h.bound || equalFold(name, "Connection") && slices.ContainsFunc(values, hasExtraConnectionOptions)
	case lengthAndInitial("Authorization"):
		h.bound = h.bound || equalFold(name, "Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	case lengthAndInitial("X-Authorization"):
		h.bound = h.bound || equalFold(name, "X-Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	case lengthAndInitial("Proxy-Authorization"):
		h.bound = h.bound || equalFold(name, "Proxy-Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	}
}

// lengthAndInitial returns the length of a word that is not empty and its first letter in lower case, as one number.
func lengthAndInitial(word string) int { return len(word)<<8 | int(word[0]|0x20) }

// equalFold reports whether s is word in any case. It compares the lengths first.
func equalFold(s, word string) bool { return len(s) == len(word) && strings.EqualFold(s, word) }

// isEventStream reports whether an Accept header names text/event-stream.
func isEventStream(accept string) bool {
	const stream = "text/event-stream"
	return len(accept) >= len(stream) && strings.Contains(strings.ToLower(accept), stream)
}

// hasExtraConnectionOptions reports whether a Connection header has an option other than close and keep-alive.
func hasExtraConnectionOptions(connection string) bool {
	for option := range strings.SplitSeq(connection, ",") {
		switch strings.ToLower(strings.TrimSpace(option)) {
		case "", "close", "keep-alive":
		default:
			return true
		}
	}
	return false
}

// singleUseSchemes are the registered authentication schemes (RFC 9110, section 16.4.1) whose credentials are valid for one connection or one request: the
// server refuses the second of two copies, which may be the primary. Basic, Bearer and vapid are the other registered ones. A scheme that is not registered
// is treated like Bearer, unless its credentials have a nonce.
var singleUseSchemes = []string{
	"Concealed", "Digest", "DPoP", "GNAP", "HOBA", "Mutual", "Negotiate", "OAuth", "PrivateToken", "SCRAM-SHA-1", "SCRAM-SHA-256",
	"NTLM", "Nego2", "Kerberos", // not registered; of Microsoft
}

// isSingleUseCredential reports whether the credentials of an Authorization header are valid for one connection or one request.
func isSingleUseCredential(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	if scheme == "Bearer" || scheme == "Basic" { // most are
		return false
	}
	for _, o := range singleUseSchemes {
		if equalFold(scheme, o) {
			return true
		}
	}
	return hasNonce(credentials)
}

// hasNonce reports whether a query, a path, credentials or a signature have a parameter NAME=VALUE whose name is that of a nonce. A server refuses
// the second of two copies.
func hasNonce(params string) bool {
	for {
		name, rest, ok := strings.Cut(params, "=")
		if !ok {
			return false
		}
		name = strings.TrimRight(name, " \t")
		if isNonce(unescapeName(name[strings.LastIndexAny(name, separators)+1:])) {
			return true
		}
		params = rest
	}
}

// separators stand before the name of a parameter.
const separators = "&;,/? \t\""

// isNonce reports whether a name contains "nonce" in any case: oauth_nonce, noncestr of WeChat, auth[nonce], SignatureNonce of Alibaba, X-Ca-Nonce. It
// skips over bytes that cannot be in the word.
func isNonce(name string) bool {
	for i := 4; i < len(name); {
		switch name[i] | 0x20 {
		case 'e':
			if strings.EqualFold(name[i-4:i+1], "nonce") {
				return true
			}
			i += 5
		case 'c':
			i++
		case 'n':
			i += 2
		case 'o':
			i += 3
		default:
			i += 5
		}
	}
	return false
}

// unescapeName returns a name without percent-encoding. Invalid escapes stay.
func unescapeName(name string) string {
	if strings.IndexByte(name, '%') < 0 {
		return name
	}
	if plain, err := url.QueryUnescape(name); err == nil {
		return plain
	}
	var plain strings.Builder
	for i := 0; i < len(name); i++ {
		if b, err := url.PathUnescape(name[i:min(i+3, len(name))]); name[i] == '%' && err == nil {
			plain.WriteString(b)
			i += 2
			continue
		}
		plain.WriteByte(name[i])
	}
	return plain.String()
}

// isSingleUse reports whether a URL has a nonce, or credentials that are good once by their specification: a ticket of CAS (protocol
// 3.0, section 3.1.1), an authorization code (RFC 6749, section 4.1.2) or verifier (RFC 5849, section 2.2) on its
// way to the client, an answer or artifact of SAML (bindings 2.0, sections 3.4 and 3.6), or a one-time password (RFC 6238, section 5.2).
// So is a grant that some servers take by GET: a grant_type (RFC 6749, section 4), an authorization code with the secret of its client, or
// WeChat's js_code.
func isSingleUse(u *url.URL) bool {
	if hasNonce(u.RawQuery) || hasNonce(u.Path) || hasNonce(u.Opaque) {
		return true
	}
	query := u.RawQuery
	if u.Opaque != "" {
		_, inOpaque, _ := strings.Cut(u.Opaque, "?")
		query = inOpaque + "&" + query
	}
	var code, ofClient bool
	for query != "" {
		var pair string
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			pair, query = query[:i], query[i+1:]
		} else {
			pair, query = query, ""
		}
		name, value, _ := strings.Cut(pair, "=")
		switch name = unescapeName(name); {
		case equalFold(name, "code"):
			code = true
		case equalFold(name, "state"), equalFold(name, "secret"), equalFold(name, "client_secret"), equalFold(name, "code_verifier"):
			ofClient = true
		case equalFold(name, "ticket"):
			if isTicket(unescapeName(value)) || isCASValidation(u.Path) {
				return true
			}
		case equalFold(name, "oauth_verifier"), equalFold(name, "SAMLart"), equalFold(name, "SAMLResponse"), equalFold(name, "otp"), equalFold(name, "grant_type"), equalFold(name, "js_code"):
			return true
		}
	}
	return code && ofClient
}

// isTicket reports whether a value is a service ticket or a proxy ticket of CAS.
func isTicket(value string) bool {
	return strings.HasPrefix(value, "ST-") || strings.HasPrefix(value, "PT-")
}

// isCASValidation reports whether path is that by which a server of CAS (Central Authentication Service, protocol 3.0) validates a ticket. A ticket
// is valid once.
func isCASValidation(path string) bool {
	switch path = strings.TrimRight(path, "/"); path[strings.LastIndexByte(path, '/')+1:] {
	case "validate", "serviceValidate", "proxyValidate":
		return true
	}
	return false
}
