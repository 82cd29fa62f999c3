package usercode

import (
	"fmt"

	"github.com/miekg/dns"
)

// CopyMessage returns a deep copy of a message that the user's code has created, or an error if a record of the message
// is nil. The caller must recover panics, because a record type of the user may panic.
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
