package chain

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// correctMissingEDE returns err with EDE 6 (DNSSEC Bogus) in place of 12 (NSEC Missing), unless missing is set. If
// there are invalid NSEC records or a positive answer, no NSEC record is missing (RFC 8914 §4.13).
func correctMissingEDE(err error, missing bool) error {
	r, ok := err.(*validate.Reason)
	if !ok || r.EDE != dns.ExtendedErrorCodeNSECMissing || missing {
		return err
	}
	wrong := *r
	wrong.EDE = dns.ExtendedErrorCodeDNSBogus
	return &wrong
}

// hasDenialRecords reports whether there are NSEC or NSEC3 records among the sets.
func hasDenialRecords(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 })
}

// limitReason returns the reason in err if the limit of a question caused it, else nil. Such a reason does not affect
// the status of a zone.
func limitReason(err error) *validate.Reason {
	why := (*validate.Reason)(nil)
	if errors.As(err, &why) && why.Limit != "" {
		return why
	}
	return nil
}

// asReason converts err to a reason. server is the server that sent the data; it is not set if the reason already has
// one.
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
