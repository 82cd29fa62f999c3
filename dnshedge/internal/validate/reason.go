package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Reason describes why data is bogus or insecure. It is the error of all functions of this package except
// TrustAnchors.
type Reason struct {
	EDE   uint16 // info code of the extended DNS error (RFC 8914)
	Text  string // description of the fault, without the values of the other fields
	Zone  string // zone whose keys were needed; "" if unknown
	Name  string // owner name of the RRset, or name of the question
	Type  uint16 // type of the RRset or of the question
	Limit string // name of the limit of a Validation that was reached; "" if none was

	// From and Until are the validity period of a signature that is expired or not yet valid. They are zero for other
	// faults.
	From, Until time.Time

	// Server is the address of the server that sent the data; zero if unknown. Only WithServer sets it.
	Server netip.AddrPort
}

// WithServer returns a copy of the reason with Server set to the address of the server that sent the data.
func (r *Reason) WithServer(server netip.AddrPort) *Reason {
	c := *r
	c.Server = server
	return &c
}

// Error returns the reason as one line of text, suitable for the EXTRA-TEXT field of an extended DNS error.
func (r *Reason) Error() string {
	var b strings.Builder
	b.WriteString("dnssec: ")
	b.WriteString(r.Text)
	if r.Name != "" {
		fmt.Fprintf(&b, ": %s %s", r.Name, dns.Type(r.Type))
	}
	if r.Zone != "" && r.Zone != r.Name {
		fmt.Fprintf(&b, " in zone %s", r.Zone)
	}
	if r.Server.IsValid() {
		fmt.Fprintf(&b, " from %s", r.Server)
	}
	return b.String()
}

var _ error = (*Reason)(nil)
