package pattern

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// A Set is a set of patterns of [http.ServeMux] and of gRPC methods. The zero Set and a nil Set match nothing. After the last Add, a Set is
// safe for concurrent use.
//
// A gRPC call is the request "POST /pkg.Service/Method" to its authority. The patterns "/pkg.Service/*" and "/*" match only gRPC calls.
type Set struct {
	muxes          []*Mux[struct{}] // several, because patterns of a Set may conflict, and those of a Mux must not
	methodPatterns map[string]bool  // "/pkg.Service/*" and "/*"
}

// Add adds a pattern. It returns an error if the pattern is invalid.
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

// Match reports whether a pattern matches a request to a host. It is false for an unclean path, see [Mux.Find].
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

// MatchCall reports whether a pattern matches a gRPC call to the authority. The method has the form "/pkg.Service/Method".
func (s *Set) MatchCall(method, authority string) bool {
	return s.MatchMethod(method) || s.Match(http.MethodPost, authority, &url.URL{Path: method})
}

// MatchMethod reports whether the Set has "/*" or the "/pkg.Service/*" of the gRPC method. It is false for an unclean path, and for a path
// without service or method: an HTTP handler may read them as other paths.
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

// IsMethodPattern reports whether pattern is a pattern of gRPC methods: /pkg.Service/Method, /pkg.Service/* or /*.
func IsMethodPattern(pattern string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(pattern, "/"), "/")
	return pattern == "/*" || strings.HasPrefix(pattern, "/") && ok && service != "" && method != "" &&
		!strings.ContainsAny(pattern, " {}") && !strings.Contains(method, "/") && (method == "*" || !strings.Contains(pattern, "*"))
}
