package usercode

import (
	"reflect"

	"github.com/miekg/dns"
)

// IsNilRecord reports whether rr is nil, or an interface that contains a nil pointer. Methods of such a record panic.
// For example, (*dns.DNSKEY).ToDS returns a nil pointer for an unsupported digest.
func IsNilRecord(rr dns.RR) bool {
	if rr == nil {
		return true
	}
	v := reflect.ValueOf(rr)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
