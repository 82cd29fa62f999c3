package validate

import (
	"encoding/binary"
	"time"
)

// A signature is what an RRSIG record says (RFC 4034 §3.1).
type signature struct {
	signedFields []byte // all data but the signature itself, in canonical form: it is signed too
	value        []byte // the signature itself
	signer       name
	typeCovered  uint16
	algorithm    uint8
	labels       int
	originalTTL  uint32 // the original one
	recordTTL    uint32 // the TTL of the RRSIG record
	expiration   uint32
	inception    uint32
	keyTag       uint16
	index        int // in RRset.Sigs
}

// parseSignature reads data in canonical form. One that is too short has no signer, and fits nothing.
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

// The clocks of signers and ours differ. A signature is taken for a tenth of its period more at either end, within these bounds.
const (
	minSkew = int64(time.Hour / time.Second)
	maxSkew = int64(24 * time.Hour / time.Second)
)

// checkValidityPeriod reports whether a signature is too early or too late at a time, in serial arithmetic (RFC 4034 §3.1.5, RFC 1982). It is
// both if it ends before it begins.
func (s *signature) checkValidityPeriod(now time.Time) (early, late bool) {
	period := int64(int32(s.expiration - s.inception))
	if period < 0 {
		return true, true
	}
	skew := min(max(period/10, minSkew), maxSkew)
	return s.secondsSince(s.inception, now)+skew < 0, s.secondsSince(s.expiration, now)-skew > 0
}

// secondsSince returns how many seconds a time is behind a date of a signature.
func (s *signature) secondsSince(date uint32, now time.Time) int64 {
	return int64(int32(uint32(now.Unix()) - date))
}

// nearestTime returns the time of a date that is nearest to now.
func (s *signature) nearestTime(nearestTime uint32, now time.Time) time.Time {
	return time.Unix(now.Unix()-s.secondsSince(nearestTime, now), 0).UTC()
}
