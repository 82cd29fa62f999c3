// Package redact removes secrets from the texts of errors.
package redact

import "strings"

const secret = "xxxxx" // replaces secrets, as in net/url

// URL returns raw with its user information and query replaced by "xxxxx", because they may contain passwords, tokens or
// signatures. The URL may be invalid: everything between "://" and the last "@" counts as user information.
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
