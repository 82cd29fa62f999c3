package httpattempt

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// Divisible reports whether two copies of req can be under way at once, safe or not: the list
// is of what can. It must have a URL, no body or one that can be kept, and nothing to say after
// that; and its header must not bind it to a connection, see [Heading].
func Divisible(req *http.Request, h Heading, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil || len(req.TransferEncoding) > 0 {
		return false
	}
	if HasBody(req) && (req.ContentLength <= 0 || req.ContentLength > maxBody) {
		return false
	}
	return !h.bound && (streams || !h.stream)
}

// A Heading is what the header of a request says of sending it twice.
type Heading struct {
	Hedge  int  // the number of the hedge that the request is made for; 0: none
	bound  bool // to one connection, or to an agreement with the server before its body is sent
	stream bool // it asks for an event stream
}

// Marks are the names of the headers in which a hedge says that it is one. Own may be empty.
type Marks struct{ Attempt, Own string }

// read adds what one header says. Names and words have no case, also in a map whose names are not canonical: net/http
// sends them as they are.
func (h *Heading) read(name string, values []string, marks Marks) {
	if len(name) == len(marks.Attempt) || len(name) == len(marks.Own) {
		if is(name, marks.Attempt) || is(name, marks.Own) {
			h.Hedge = max(h.Hedge, race.HedgeNumber(values))
			return
		}
	}
	switch len(name) {
	case len("Accept"): // and Expect
		h.stream = h.stream || is(name, "Accept") && slices.ContainsFunc(values, asksForStream)
		h.bound = h.bound || is(name, "Expect") && len(values) > 0
	case len("Upgrade"):
		h.bound = h.bound || is(name, "Upgrade") && len(values) > 0
	case len("Connection"):
		h.bound = h.bound || is(name, "Connection") && slices.ContainsFunc(values, agrees)
	case len("Authorization"):
		h.bound = h.bound || is(name, "Authorization") && slices.ContainsFunc(values, provesConnection)
	case len("Proxy-Authorization"):
		h.bound = h.bound || is(name, "Proxy-Authorization") && slices.ContainsFunc(values, provesConnection)
	}
}

// is reports whether s is word, which is not empty, in any case. Most words differ in length or in how they begin, which
// is cheap to see: a letter and its other case differ in one bit.
func is(s, word string) bool {
	return len(s) == len(word) && len(s) > 0 && (s[0]^word[0])&^0x20 == 0 && strings.EqualFold(s, word)
}

// asksForStream reports whether an Accept header names an event stream.
func asksForStream(accept string) bool {
	const stream = "text/event-stream"
	return len(accept) >= len(stream) && strings.Contains(strings.ToLower(accept), stream)
}

// agrees reports whether a Connection header says more than how long the connection lasts.
func agrees(connection string) bool {
	for option := range strings.SplitSeq(connection, ",") {
		switch strings.ToLower(strings.TrimSpace(option)) {
		case "", "close", "keep-alive":
		default:
			return true
		}
	}
	return false
}

// provesConnection reports whether credentials are by a scheme that authenticates a connection
// instead of a request (RFC 4559, section 6).
func provesConnection(credentials string) bool {
	scheme, _, _ := strings.Cut(strings.TrimSpace(credentials), " ")
	return is(scheme, "NTLM") || is(scheme, "Negotiate") || is(scheme, "Nego2") || is(scheme, "Kerberos")
}
