package validate

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A Reason says why data is bogus, or why it is insecure. Every error of this package is a *Reason.
type Reason struct {
	EDE   uint16 // the code of an extended error (RFC 8914)
	Text  string // what is wrong, without the fields below
	Zone  string // whose keys were, or would have been, the right ones; "": not known
	Name  string // of the RRset, or the name that was asked for
	Type  uint16
	Limit string // the limit of a Work that was reached; "": none

	// From and Until are when the signature was valid that was tried at another time. Zero: it was not that.
	From, Until time.Time

	// Server said so. This package does not know it: see At.
	Server netip.AddrPort
}

// WithServer returns the reason with the server that is to blame.
func (r *Reason) WithServer(server netip.AddrPort) *Reason {
	c := *r
	c.Server = server
	return &c
}

// Error returns the reason as one line, which is fit for the text of an extended error.
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
