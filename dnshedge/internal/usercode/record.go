package usercode

import (
	"reflect"

	"github.com/miekg/dns"
)

// IsNilRecord reports whether a record is nil, or a nil pointer of a record's type, as (*dns.DNSKEY).ToDS returns for a digest that it does not
// support. Methods of such a pointer panic.
func IsNilRecord(rr dns.RR) bool {
	if rr == nil {
		return true
	}
	v := reflect.ValueOf(rr)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
