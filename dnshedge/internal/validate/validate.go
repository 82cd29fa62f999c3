// Package validate says what DNSSEC says of records: RRsets and keys go in, a status comes out (RFC 4033 to 4035, 5155, 6840).
// It has no sockets, no clock and no goroutines: whoever uses it asks the servers, and the time is an argument. That is
// wall clock, for signatures are valid from one date to another.
//
// [Sets] groups the records of a response into RRsets with their signatures. [Work.Keys] takes the keys of a zone from its DNSKEY
// RRset, which must fit a [DSSet]: an anchor, or what the zone above says of it. [Work.Verify] verifies an RRset with the keys of its
// zone, and [Work.Denies] what a response proves not to exist. A [Work] is what one question may cost: who makes up
// keys, signatures or hashes to keep a resolver busy reaches its limits soon, and its answers are then bogus.
//
// Nothing is secure unless a rule says so. Where package dns would take what RFC 4035 §5.3 does not allow, or does not write
// data as it was read, this package has code of its own.
package validate

// Status is what is known of data (RFC 4035 §4.3).
type Status uint8

const (
	// Unchecked data has not been judged, or was judged by keys that nobody has verified yet.
	Unchecked Status = iota
	// Secure data is signed, in an unbroken chain from an anchor on.
	Secure
	// Insecure data is proven not to be signed, or signed in no way that this package knows.
	Insecure
	// Bogus data ought to be signed, and is not, or not rightly.
	Bogus
)

var statusNames = [...]string{Unchecked: "unchecked", Secure: "secure", Insecure: "insecure", Bogus: "bogus"}

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "unknown"
}
