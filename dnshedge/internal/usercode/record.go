package usercode

import (
	"reflect"

	"github.com/miekg/dns"
)

// IsNilRecord reports whether a record is nil, or a nil pointer of a record's type. Methods of a nil pointer panic.
// (*dns.DNSKEY).ToDS returns one for a digest that it does not support.
func IsNilRecord(rr dns.RR) bool {
	if rr == nil {
		return true
	}
	v := reflect.ValueOf(rr)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
