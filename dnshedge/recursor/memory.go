package recursor

import (
	"reflect"

	"github.com/miekg/dns"
)

// estimateRecordMemory returns the estimated memory of the records in all sections, in bytes.
func estimateRecordMemory(sections ...[]dns.RR) (n int64) {
	for _, rrs := range sections {
		for _, rr := range rrs {
			n += 32 + estimateValueMemory(reflect.ValueOf(rr))
		}
	}
	return n
}

// estimateValueMemory returns the estimated memory that v refers to, in bytes. It does not use the wire format: a
// record that is small in a message may be large in memory, for example if it has many empty strings.
func estimateValueMemory(v reflect.Value) int64 {
	var n int64
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n = int64(v.Elem().Type().Size()) + estimateValueMemory(v.Elem())
		}
	case reflect.String:
		n = int64(v.Len())
	case reflect.Slice:
		n = int64(v.Cap()) * int64(v.Type().Elem().Size())
		switch v.Type().Elem().Kind() {
		case reflect.String, reflect.Slice, reflect.Struct, reflect.Pointer, reflect.Interface:
			for i := range v.Len() {
				n += estimateValueMemory(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += estimateValueMemory(v.Field(i))
		}
	}
	return n
}
