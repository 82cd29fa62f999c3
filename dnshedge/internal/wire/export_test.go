package wire

import (
	"time"

	"github.com/miekg/dns"
)

// Unpack exports unpackMessage to tests.
var Unpack = unpackMessage

// CheckResponse reports whether resp is taken for the response to a query in wire
// format, and what becomes of it: the answer to a caller, in both formats.
func CheckResponse(query, resp []byte) (m *dns.Msg, packed []byte, err error) {
	q, err := ParseQuery(query)
	if err != nil {
		return nil, nil, err
	}
	if err := q.CheckResponse(resp, q.ID); err != nil {
		return nil, nil, err
	}
	a, err := ParseAnswer(resp, q)
	if err != nil {
		return nil, nil, err
	}
	ask := new(dns.Msg)
	if err := ask.Unpack(query); err != nil {
		return nil, nil, err
	}
	v := ResponseOptions{Age: time.Second}
	return a.Message(ask, q, v), a.Append(nil, q, v, 0), nil
}

// Options returns the server's EDNS options that the Answer stores.
func (a *Answer) Options() []byte { return a.options }

// MayBeCompressed reports whether names in data of a type may be compressed.
func MayBeCompressed(typ uint16) bool { return dataLayouts[typ].names > 0 }
