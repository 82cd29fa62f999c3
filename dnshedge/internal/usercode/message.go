package usercode

import (
	"fmt"

	"github.com/miekg/dns"
)

// CopyMessage returns a copy of a message of a program's author, which shares nothing with the message. The error is for a message with a nil
// record. Records of the author's own types may panic, which the caller recovers.
func CopyMessage(m *dns.Msg) (*dns.Msg, error) {
	for _, section := range []struct {
		name    string
		records []dns.RR
	}{{"Answer", m.Answer}, {"Ns", m.Ns}, {"Extra", m.Extra}} {
		for i, rr := range section.records {
			if IsNilRecord(rr) {
				return nil, fmt.Errorf("%s[%d] of the message is nil; want a record", section.name, i)
			}
		}
	}
	return m.Copy(), nil
}
