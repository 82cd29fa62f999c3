package wire

import (
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"
)

// An Outcome is the meaning of a response for the client: records, no such records, no such name, or a failure.
type Outcome int8

// The outcomes. Failure and FinalFailure are failures.
const (
	Positive     Outcome = iota // the response has records of the question's type, or it has any records and the type is ANY
	NoData                      // the name exists, but it has no records of the type (RFC 2308 §2.2)
	NXDomain                    // the name does not exist (RFC 2308 §2.1)
	FinalFailure                // DNSSEC or a policy forbids an answer; no other server must be tried
	Failure                     // the server could not or would not answer; another server may be tried
)

// classifyResponse returns the meaning of the response m for the client: records, no records, no such name, or a
// failure. m must have one question. errs are the extended errors of m.
func classifyResponse(m []byte, errs []EDE) Outcome {
	switch int(m[3] & 15) {
	case dns.RcodeSuccess:
		end, _ := skipName(m, HeaderLen)
		asked := binary.BigEndian.Uint16(m[end:])
		answers, found, referral := 0, false, true
		_ = walkRecords(m, func(r messageRecord) {
			switch r.section {
			case answer:
				answers++
				found = found || r.typ == asked || asked == dns.TypeANY
			case authority:
				referral = referral && r.typ == dns.TypeNS
			}
		})
		// A server without recursion and authority is lame if it returns nothing, or only a
		// referral to other servers.
		lame := binary.BigEndian.Uint16(m[2:])&(flagRA|flagAA) == 0 && referral
		switch {
		case found:
			return Positive
		case answers == 0 && lame:
			return Failure
		}
		return NoData
	case dns.RcodeNameError:
		return NXDomain
	case dns.RcodeYXDomain: // the name would be too long (RFC 6672 §2.2)
		return FinalFailure
	case dns.RcodeServerFailure:
		// Another server that does not validate or filter would answer, and so it would
		// defeat the purpose of this server.
		if slices.ContainsFunc(errs, func(e EDE) bool { return e.isValidationFailure() || e.isBlock() }) {
			return FinalFailure
		}
	case dns.RcodeRefused:
		if slices.ContainsFunc(errs, EDE.isBlock) {
			return FinalFailure
		}
	}
	return Failure
}

// IsBogus reports whether the response is a DNSSEC validation failure: the code SERVFAIL with an extended error about
// DNSSEC. The cause may be wrong signatures of the name, or a server with a wrong clock or an old trust anchor.
func (a *Answer) IsBogus() bool {
	return a.Rcode() == dns.RcodeServerFailure && slices.ContainsFunc(a.EDE, EDE.isValidationFailure)
}

// isValidationFailure reports whether the extended error says that DNSSEC validation has failed.
func (e EDE) isValidationFailure() bool {
	c := e.Code
	return c == 1 || c == 2 || 5 <= c && c <= 12 || c == 27
}

// isBlock reports whether the extended error says that a policy blocks the name: Blocked, Censored or Filtered. The
// code Prohibited does not count, because it means that the client is not authorized (RFC 8914 §4.19).
func (e EDE) isBlock() bool { return 15 <= e.Code && e.Code <= 17 }
