package chain

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// correctMissingEDE returns err with EDE 6 in place of 12, unless missing is set: no NSEC record is missing if there is
// invalid evidence or a positive answer (RFC 8914 §4.13).
func correctMissingEDE(err error, missing bool) error {
	r, ok := err.(*validate.Reason)
	if !ok || r.EDE != dns.ExtendedErrorCodeNSECMissing || missing {
		return err
	}
	wrong := *r
	wrong.EDE = dns.ExtendedErrorCodeDNSBogus
	return &wrong
}

// hasDenialRecords reports whether there are NSEC or NSEC3 records.
func hasDenialRecords(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 })
}

// limitReason returns the reason in err if a limit of the question caused it, or nil. It says nothing of a zone.
func limitReason(err error) *validate.Reason {
	why := (*validate.Reason)(nil)
	if errors.As(err, &why) && why.Limit != "" {
		return why
	}
	return nil
}

// asReason returns an error as a reason with the server that sent the data.
func asReason(err error, server netip.AddrPort) *validate.Reason {
	if r, ok := err.(*validate.Reason); ok {
		if r.Server.IsValid() {
			return r
		}
		return r.WithServer(server)
	}
	text := "it could not be judged"
	if err != nil {
		text = err.Error()
	}
	return &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: text, Server: server}
}
