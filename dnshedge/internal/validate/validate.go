// Package validate verifies DNSSEC: RRsets and keys go in, a security status comes out (RFC 4033 to 4035, 5155, 6840). It
// has no sockets, no clock and no goroutines. The caller asks the servers and passes the time, which must be wall clock
// time, because signatures are valid between two dates.
//
// [GroupRRsets] groups the records of a response into RRsets with their signatures. [Validation.VerifyDNSKEY] reads the
// keys of a zone from its DNSKEY RRset, which must match a [DSSet]: a trust anchor or the DS records of the parent.
// [Validation.Verify] verifies an RRset with the keys of its zone. [Validation.VerifyDenial] verifies a proof that a name
// or a type does not exist.
//
// A [Validation] bounds the work for one question. Keys, signatures or hashes made up to keep a resolver busy reach its
// limits soon, and the answer is then bogus.
//
// Nothing is secure unless a rule of the RFCs says so. Where package dns accepts more than RFC 4035 §5.3 allows, or does
// not write data as it was read, this package has code of its own.
package validate

// Status is the security status of data (RFC 4035 §4.3).
type Status uint8

const (
	// Unchecked data was not verified, or was verified with keys that are not trusted yet.
	Unchecked Status = iota
	// Secure data is signed, in an unbroken chain from a trust anchor.
	Secure
	// Insecure data is proven to be unsigned, or signed only with unsupported algorithms.
	Insecure
	// Bogus data lacks a valid signature although the zone is signed.
	Bogus
)

var statusNames = [...]string{Unchecked: "unchecked", Secure: "secure", Insecure: "insecure", Bogus: "bogus"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}
