package pattern

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// A Set is a set of patterns for HTTP requests and gRPC methods. The zero value and a nil *Set match nothing. After the last
// call of Add, a Set is safe for concurrent use.
//
// Patterns of [http.ServeMux] also match gRPC calls, because a gRPC call is the HTTP request "POST /pkg.Service/Method". The
// patterns "/pkg.Service/*" and "/*" match gRPC calls only.
type Set struct {
	muxes          []*Mux[struct{}] // several, because patterns of a Set may conflict, but patterns of a Mux must not
	methodPatterns map[string]bool  // patterns of the forms "/pkg.Service/*" and "/*"
}

// Add adds a pattern for HTTP requests or gRPC methods to s. It returns an error if the pattern is invalid.
func (s *Set) Add(pattern string) error {
	if strings.HasSuffix(pattern, "/*") && IsMethodPattern(pattern) {
		if s.methodPatterns == nil {
			s.methodPatterns = make(map[string]bool)
		}
		s.methodPatterns[pattern] = true
		return nil
	}
	if strings.Contains(pattern+"/", "/*/") {
		return fmt.Errorf(`a segment "*" is for gRPC methods, as in /pkg.Service/* and /*; a path may end with "/" or {rest...}`)
	}
	for _, m := range s.muxes {
		if m.Add(pattern, "", struct{}{}) == nil {
			return nil
		}
	}
	m := new(Mux[struct{}])
	s.muxes = append(s.muxes, m)
	return m.Add(pattern, "", struct{}{})
}

// Match reports whether a pattern matches the HTTP request with the given method, host and URL. It is false if the path of the
// URL is not clean, see [Mux.Find].
func (s *Set) Match(method, host string, u *url.URL) bool {
	if s == nil {
		return false
	}
	for _, m := range s.muxes {
		if _, clean, ok := m.Find(method, host, u); ok && clean {
			return true
		}
	}
	return false
}

// MatchCall reports whether a pattern matches a call of the gRPC method, given as "/pkg.Service/Method", to the given
// authority.
func (s *Set) MatchCall(method, authority string) bool {
	return s.MatchMethod(method) || s.Match(http.MethodPost, authority, &url.URL{Path: method})
}

// MatchMethod reports whether a pattern of the form "/*" or "/pkg.Service/*" matches the gRPC method. Patterns of
// [http.ServeMux] do not count.
//
// The result is false if method is not a clean path, because an HTTP server may treat it as another path. It is also
// false if method has no service name.
func (s *Set) MatchMethod(method string) bool {
	if s == nil || s.methodPatterns == nil || path.Clean(method) != method {
		return false
	}
	service := method[:strings.LastIndexByte(method, '/')+1]
	if len(service) < 2 || service[0] != '/' {
		return false
	}
	return s.methodPatterns["/*"] || s.methodPatterns[service+"*"]
}

// IsMethodPattern reports whether pattern has a form that is allowed for gRPC: /pkg.Service/Method, /pkg.Service/* or /*.
func IsMethodPattern(pattern string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(pattern, "/"), "/")
	return pattern == "/*" || strings.HasPrefix(pattern, "/") && ok && service != "" && method != "" &&
		!strings.ContainsAny(pattern, " {}") && !strings.Contains(method, "/") && (method == "*" || !strings.Contains(pattern, "*"))
}
