package usercode

import (
	"reflect"

	"github.com/miekg/dns"
)

// IsNilRecord reports whether a record is nil or a nil pointer in an interface. Methods of a nil pointer panic. For
// example, (*dns.DNSKEY).ToDS returns nil for an unsupported digest.
func IsNilRecord(rr dns.RR) bool {
	if rr == nil {
		return true
	}
	v := reflect.ValueOf(rr)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
