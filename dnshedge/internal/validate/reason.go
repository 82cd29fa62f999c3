package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Reason describes why data is bogus or insecure. Every error of this package but that of TrustAnchors is a *Reason.
type Reason struct {
	EDE   uint16 // info code of the extended error (RFC 8914)
	Text  string // description of the fault, without the fields below
	Zone  string // zone whose keys were needed; "": unknown
	Name  string // owner of the RRset, or the name of the question
	Type  uint16
	Limit string // name of the limit of a Validation that was reached; "": none

	// From and Until are the validity period of a signature that was used outside of it. Otherwise they are zero.
	From, Until time.Time

	// Server is the server that sent the data. Only WithServer sets it.
	Server netip.AddrPort
}

// WithServer returns a copy of the reason with the address of the server that sent the data.
func (r *Reason) WithServer(server netip.AddrPort) *Reason {
	c := *r
	c.Server = server
	return &c
}

// Error returns the reason as one line of text, suitable for the EXTRA-TEXT of an extended error.
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
