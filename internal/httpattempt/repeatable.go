package httpattempt

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// IsRepeatable reports whether two copies of req can be in flight at the same time. It does not check whether the
// request method is safe. The argument h must hold the traits of req.Header. The result is true if all of these
// conditions hold:
//
//   - the URL is set, and the method is not CONNECT;
//   - the body is absent, or has a known length of at most maxBody bytes;
//   - there are no trailers and no transfer encodings;
//   - the header does not bind the request to one connection or one use, see [HeaderTraits];
//   - the URL has no nonce and no credential for a single use;
//   - the request does not accept an event stream, unless streams is true.
func IsRepeatable(req *http.Request, h HeaderTraits, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil || len(req.TransferEncoding) > 0 {
		return false
	}
	if HasBody(req) && (req.ContentLength <= 0 || req.ContentLength > maxBody) {
		return false
	}
	return !h.notRepeatable && !isSingleUse(req.URL) && (streams || !h.acceptsEventStream)
}

// HeaderTraits are the properties of a request header that decide whether the request may be hedged.
type HeaderTraits struct {
	Hedge              int  // number of the hedge that this request belongs to, from a header that marks hedges; 0 if there is no such header
	notRepeatable      bool // the request can be sent only once or on one connection only, or it waits for the server before its body (Expect, Upgrade)
	acceptsEventStream bool // the request accepts a response of the type text/event-stream
}

// AttemptHeaders are the names of the two headers that contain the number of a hedge. The server uses them to recognize
// hedges. The name Standard is the same for all clients. The program chooses the name Configured; "" means no second
// header.
type AttemptHeaders struct{ Standard, Configured string }

// addField updates h by one header field with the given name and values. The argument marks names the headers that
// contain the number of a hedge. Names are compared without regard to case, because net/http sends the keys of a header
// map unchanged.
//
// For speed, addField first compares the length and the initial letter of a name.
func (h *HeaderTraits) addField(name string, values []string, marks *AttemptHeaders) {
	if name == "" {
		return
	}
	if equalFold(name, marks.Standard) || equalFold(name, marks.Configured) {
		h.Hedge = max(h.Hedge, race.HedgeNumber(values))
		return
	}
	if isNonce(name) {
		h.notRepeatable = true
		return
	}
	switch hashLengthAndInitial(name) {
	case hashLengthAndInitial("Accept"):
		h.acceptsEventStream = h.acceptsEventStream || equalFold(name, "Accept") && slices.ContainsFunc(values, isEventStream)
	case hashLengthAndInitial("Expect"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "Expect") && len(values) > 0
	case hashLengthAndInitial("DPoP"): // RFC 9449
		h.notRepeatable = h.notRepeatable || equalFold(name, "DPoP")
	case hashLengthAndInitial("Signature-Input"): // RFC 9421
		h.notRepeatable = h.notRepeatable || equalFold(name, "Signature-Input") && slices.ContainsFunc(values, hasNonce)
	case hashLengthAndInitial("X-WSSE"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "X-WSSE") && slices.ContainsFunc(values, hasNonce)
	case hashLengthAndInitial("Upgrade"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "Upgrade") && len(values) > 0
	case hashLengthAndInitial("Connection"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "Connection") && slices.ContainsFunc(values, hasExtraConnectionOptions)
	case hashLengthAndInitial("Authorization"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	case hashLengthAndInitial("X-Authorization"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "X-Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	case hashLengthAndInitial("Proxy-Authorization"):
		h.notRepeatable = h.notRepeatable || equalFold(name, "Proxy-Authorization") && slices.ContainsFunc(values, isSingleUseCredential)
	}
}

// hashLengthAndInitial returns a number that combines the length of a word and its first letter, in lower case. ASCII
// words with different numbers are not equal, ignoring case, which saves most comparisons of names. The word must not
// be empty.
func hashLengthAndInitial(word string) int { return len(word)<<8 | int(word[0]|0x20) }

// equalFold reports whether s equals word, ignoring case. It is faster than [strings.EqualFold] because it compares the
// lengths first. The word must be in ASCII.
func equalFold(s, word string) bool { return len(s) == len(word) && strings.EqualFold(s, word) }

// isEventStream reports whether accept, the value of an Accept header, contains the media type text/event-stream.
func isEventStream(accept string) bool {
	const stream = "text/event-stream"
	return len(accept) >= len(stream) && strings.Contains(strings.ToLower(accept), stream)
}

// hasExtraConnectionOptions reports whether the value of a Connection header has an option other than close and
// keep-alive. Other options, such as Upgrade, apply to one connection only.
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

// singleUseSchemes are the authentication schemes whose credentials are valid for one connection or one request. If two
// attempts carry such credentials, the server refuses the second attempt to arrive, which may be the primary.
//
// The other schemes in the IANA registry (RFC 9110, section 16.4.1) are Basic, Bearer and vapid. An unregistered scheme
// is treated like Bearer, unless its credentials contain a nonce.
var singleUseSchemes = []string{
	"Concealed", "Digest", "DPoP", "GNAP", "HOBA", "Mutual", "Negotiate", "OAuth", "PrivateToken", "SCRAM-SHA-1", "SCRAM-SHA-256",
	"NTLM", "Nego2", "Kerberos", // not registered; of Microsoft
}

// isSingleUseCredential reports whether credentials, the value of an Authorization header, are valid for one connection
// or one request only.
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

// hasNonce reports whether params contains a parameter NAME=VALUE whose name identifies a nonce, see isNonce. The
// argument params is a query, a path, credentials or a signature. A server refuses the second request with the same
// nonce.
func hasNonce(params string) bool {
	for {
		end := strings.IndexByte(params, '=')
		if end < 0 {
			return false
		}
		name := strings.TrimRight(params[:end], " \t")
		if isNonce(unescapeName(name[strings.LastIndexAny(name, separators)+1:])) {
			return true
		}
		params = params[end+1:]
	}
}

// separators are the characters that may precede the name of a parameter in a query, path, credential or signature.
const separators = "&;,/? \t\""

// isNonce reports whether the name of a parameter or header contains the word nonce, ignoring case. Examples are
// oauth_nonce, noncestr (WeChat), auth[nonce], SignatureNonce and X-Ca-Nonce (Alibaba). For speed, it skips bytes that
// cannot be part of the word.
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

// unescapeName decodes the percent-encoding of a parameter name. It leaves invalid escapes unchanged.
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

// isSingleUse reports whether a URL contains a nonce or a credential that is valid only once. These credentials are
// recognized:
//
//   - a service ticket of CAS (protocol 3.0, section 3.1.1);
//   - an authorization code (RFC 6749, section 4.1.2) on its way to the client, or with the client's secret;
//   - a verifier of OAuth 1.0 (RFC 5849, section 2.2);
//   - a response or an artifact of SAML (bindings 2.0, sections 3.4 and 3.6);
//   - a one-time password (RFC 6238, section 5.2);
//   - a token request by GET: a grant_type (RFC 6749, section 4) or WeChat's js_code.
func isSingleUse(u *url.URL) bool {
	if hasNonce(u.Path) {
		return true
	}
	if u.RawQuery == "" && u.Opaque == "" { // most URLs
		return false
	}
	if hasNonce(u.RawQuery) || hasNonce(u.Opaque) {
		return true
	}
	query := u.RawQuery
	if u.Opaque != "" {
		_, inOpaque, _ := strings.Cut(u.Opaque, "?")
		query = inOpaque + "&" + query
	}
	var code, isOAuthClient bool
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
			isOAuthClient = true
		case equalFold(name, "ticket"):
			if isTicket(unescapeName(value)) || isCASValidation(u.Path) {
				return true
			}
		case equalFold(name, "oauth_verifier"), equalFold(name, "SAMLart"), equalFold(name, "SAMLResponse"), equalFold(name, "otp"), equalFold(name, "grant_type"), equalFold(name, "js_code"):
			return true
		}
	}
	return code && isOAuthClient
}

// isTicket reports whether a parameter value is a service ticket or a proxy ticket of CAS (Central Authentication
// Service).
func isTicket(value string) bool {
	return strings.HasPrefix(value, "ST-") || strings.HasPrefix(value, "PT-")
}

// isCASValidation reports whether a URL path ends with the name of a CAS endpoint that validates tickets (Central
// Authentication Service, protocol 3.0). A ticket can be validated only once.
func isCASValidation(path string) bool {
	switch path = strings.TrimRight(path, "/"); path[strings.LastIndexByte(path, '/')+1:] {
	case "validate", "serviceValidate", "proxyValidate":
		return true
	}
	return false
}
