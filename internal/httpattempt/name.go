package httpattempt

import "strings"

// HostName returns host, with its port unless that is the scheme's own. All spellings of
// a host have the same name.
func HostName(scheme, host string) string {
	canonical := true
	for i := range len(host) {
		c := host[i]
		canonical = canonical && !(c >= 'A' && c <= 'Z' || c == '.' && (i == len(host)-1 || host[i+1] == ':'))
	}
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	if canonical {
		return host
	}
	name, port, ok := strings.Cut(host, ":")
	host = strings.TrimSuffix(name, ".")
	if ok {
		host += ":" + port
	}
	return strings.ToLower(host)
}
