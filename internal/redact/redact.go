// Package redact removes secrets from error texts.
package redact

import "strings"

const secret = "xxxxx" // net/url's own substitute for a password

// URL returns a URL with its user information and its query replaced, as passwords, tokens and signatures are there. The URL need not be valid:
// everything between :// and its last @ counts as user information.
func URL(raw string) string {
	if at := strings.LastIndex(raw, "@"); at >= 0 {
		scheme, _, ok := strings.Cut(raw[:at], "://")
		if ok && !strings.ContainsAny(scheme, ":/?#@") {
			scheme += "://"
		} else {
			scheme = ""
		}
		raw = scheme + secret + raw[at:]
	}
	if before, _, ok := strings.Cut(raw, "?"); ok {
		raw = before + "?" + secret
	}
	return raw
}
