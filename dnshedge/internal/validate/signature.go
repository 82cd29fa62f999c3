package validate

import (
	"encoding/binary"
	"time"
)

// A signature is a parsed RRSIG record (RFC 4034 §3.1). Its slices are parts of the record's data.
type signature struct {
	signedFields []byte // record data without the signature field, in canonical form, which the signature covers
	value        []byte // the signature field
	signer       name
	typeCovered  uint16
	algorithm    uint8
	labels       int    // labels of the owner name before the expansion of a wildcard
	originalTTL  uint32 // TTL of the records in the zone, in seconds
	recordTTL    uint32 // TTL of the RRSIG record as received, in seconds
	expiration   uint32 // seconds since 1970, modulo 2³²
	inception    uint32 // seconds since 1970, modulo 2³²
	keyTag       uint16
	index        int // index of the record in RRset.Sigs
}

// parseSignature parses the data of an RRSIG record in canonical form. ttl is the TTL of the record in seconds. If the
// data is malformed, the signature has no signer and is never valid.
func parseSignature(b []byte, ttl uint32) signature {
	const fixed = 18
	if len(b) < fixed {
		return signature{}
	}
	n, ok := scanName(b[fixed:])
	if !ok {
		return signature{}
	}
	return signature{
		signedFields: b[:fixed+n], value: b[fixed+n:], signer: name(b[fixed : fixed+n]),
		typeCovered: binary.BigEndian.Uint16(b), algorithm: b[2], labels: int(b[3]), originalTTL: binary.BigEndian.Uint32(b[4:]), recordTTL: ttl,
		expiration: binary.BigEndian.Uint32(b[8:]), inception: binary.BigEndian.Uint32(b[12:]), keyTag: binary.BigEndian.Uint16(b[16:]),
	}
}

// Limits of the tolerated clock skew in seconds. Within them, a signature is accepted for a tenth of its validity
// period before and after that period.
const (
	minSkew = int64(time.Hour / time.Second)
	maxSkew = int64(24 * time.Hour / time.Second)
)

// checkValidityPeriod compares the time now with the validity period of the signature. It tolerates a clock skew. early
// is true if now is before the period, and late if it is after.
//
// Both are true if the expiration precedes the inception. Times are compared in serial number arithmetic (RFC 4034
// §3.1.5, RFC 1982).
func (s *signature) checkValidityPeriod(now time.Time) (early, late bool) {
	period := int64(int32(s.expiration - s.inception))
	if period < 0 {
		return true, true
	}
	skew := min(max(period/10, minSkew), maxSkew)
	return s.secondsSince(s.inception, now)+skew < 0, s.secondsSince(s.expiration, now)-skew > 0
}

// secondsSince returns the number of seconds from date, the inception or expiration field of the signature, to now. It
// is computed in serial number arithmetic, and is negative if date is in the future.
func (s *signature) secondsSince(date uint32, now time.Time) int64 {
	return int64(int32(uint32(now.Unix()) - date))
}

// toTime converts date, the inception or expiration field of the signature, to a time. The field lacks the higher bits
// of the time, so the result is the possible time that is nearest to now.
func (s *signature) toTime(date uint32, now time.Time) time.Time {
	return time.Unix(now.Unix()-s.secondsSince(date, now), 0).UTC()
}
