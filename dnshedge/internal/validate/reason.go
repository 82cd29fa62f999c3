package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Reason says why data is bogus or insecure. Every error of this package is a *Reason.
type Reason struct {
	EDE   uint16 // info code of the extended error (RFC 8914)
	Text  string // the defect, without the fields below
	Zone  string // whose keys were needed; "": unknown
	Name  string // owner of the RRset, or the name of the question
	Type  uint16
	Limit string // limit of a Validation that was reached; "": none

	// From and Until are the validity period of the signature if it was used outside of it. Otherwise they are zero.
	From, Until time.Time

	// Server sent the data. This package does not set it; see WithServer.
	Server netip.AddrPort
}

// WithServer returns a copy of the reason with the server that sent the data.
func (r *Reason) WithServer(server netip.AddrPort) *Reason {
	c := *r
	c.Server = server
	return &c
}

// Error returns the reason in one line, fit for the EXTRA-TEXT of an extended error.
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
