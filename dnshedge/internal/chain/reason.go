package chain

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// correctNSECMissing corrects the extended error code of err, the error of a failed proof. Code 12 (NSEC Missing)
// becomes 6 (DNSSEC Bogus), unless missing is true: the response has no NSEC or NSEC3 records (RFC 8914 §4.13). Other
// errors are returned unchanged.
func correctNSECMissing(err error, missing bool) error {
	r, ok := err.(*validate.Reason)
	if !ok || r.EDE != dns.ExtendedErrorCodeNSECMissing || missing {
		return err
	}
	wrong := *r
	wrong.EDE = dns.ExtendedErrorCodeDNSBogus
	return &wrong
}

// hasDenialRecords reports whether at least one of the sets has NSEC or NSEC3 records, whether they are valid or not.
func hasDenialRecords(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return s.Type == dns.TypeNSEC || s.Type == dns.TypeNSEC3 })
}

// findLimitReason returns the *validate.Reason in err if a limit of the question, of queries or of cryptographic
// work, has caused the error. Otherwise it returns nil. The caller must not record a zone as bogus because of a
// limit.
func findLimitReason(err error) *validate.Reason {
	why := (*validate.Reason)(nil)
	if errors.As(err, &why) && why.Limit != "" {
		return why
	}
	return nil
}

// asReason converts err to a *validate.Reason, with server as the sender of the data. If err is a *validate.Reason that
// has a Server, it is returned unchanged.
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
