// Package validate verifies DNSSEC signatures and proofs, and determines the security status of data (RFC 4033 to 4035,
// 5155, 6840). It has no sockets, no clock and no goroutines. The caller queries the servers and passes the time. The
// time must be wall clock time, because signatures have absolute validity periods.
//
// [GroupRRsets] groups the records of a response into RRsets with their signatures. [Validation.VerifyDNSKEY] verifies
// the DNSKEY RRset of a zone against a [DSSet]: a trust anchor or the DS records of the parent. [Validation.Verify]
// verifies an RRset with the keys of its zone. [Validation.VerifyDenial] verifies a proof that a name or a type does
// not exist.
//
// A [Validation] limits the work for one question. Forged keys, signatures or hashes that are meant to keep a resolver
// busy reach its limits soon, and the answer is then bogus.
//
// Data is secure only if a rule of the RFCs says so. Package dns accepts more than RFC 4035 §5.3 allows, and does not
// always write data as it was read. For these cases this package has code of its own.
package validate

// Status is the security status of data: Unchecked, Secure, Insecure or Bogus (RFC 4035 §4.3).
type Status uint8

const (
	// Unchecked data was not verified, or was verified with keys that are not trusted yet.
	Unchecked Status = iota
	// Secure data is signed, in an unbroken chain from a trust anchor.
	Secure
	// Insecure data is proven to be unsigned, or signed only with unsupported algorithms.
	Insecure
	// Bogus data has no valid signature although its zone is signed.
	Bogus
)

var statusNames = [...]string{Unchecked: "unchecked", Secure: "secure", Insecure: "insecure", Bogus: "bogus"}

// String returns the status in lower case, for example "secure". For invalid values it returns "unknown".
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}
