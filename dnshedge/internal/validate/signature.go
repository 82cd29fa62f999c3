package validate

import (
	"encoding/binary"
	"time"
)

// A signature is what an RRSIG record says (RFC 4034 §3.1).
type signature struct {
	head      []byte // all data but the signature itself, in canonical form: it is signed too
	bytes     []byte // the signature itself
	signer    name
	covered   uint16
	algorithm uint8
	labels    int
	ttl       uint32 // the original one
	received  uint32 // the TTL of the RRSIG record
	until     uint32
	from      uint32
	tag       uint16
	index     int // in RRset.Sigs
}

// readSignature reads data in canonical form. One that is too short has no signer, and fits nothing.
func readSignature(b []byte, ttl uint32) signature {
	const fixed = 18
	if len(b) < fixed {
		return signature{}
	}
	n, ok := readName(b[fixed:])
	if !ok {
		return signature{}
	}
	return signature{
		head: b[:fixed+n], bytes: b[fixed+n:], signer: name(b[fixed : fixed+n]),
		covered: binary.BigEndian.Uint16(b), algorithm: b[2], labels: int(b[3]), ttl: binary.BigEndian.Uint32(b[4:]), received: ttl,
		until: binary.BigEndian.Uint32(b[8:]), from: binary.BigEndian.Uint32(b[12:]), tag: binary.BigEndian.Uint16(b[16:]),
	}
}

// The clocks of signers and ours differ. A signature is taken for a tenth of its period more at either end, within these bounds.
const (
	minSkew = int64(time.Hour / time.Second)
	maxSkew = int64(24 * time.Hour / time.Second)
)

// valid reports whether a signature is too early or too late at a time, in serial arithmetic (RFC 4034 §3.1.5, RFC 1982). It is
// both if it ends before it begins.
func (s *signature) valid(now time.Time) (early, late bool) {
	period := int64(int32(s.until - s.from))
	if period < 0 {
		return true, true
	}
	skew := min(max(period/10, minSkew), maxSkew)
	return s.since(s.from, now)+skew < 0, s.since(s.until, now)-skew > 0
}

// since returns how many seconds a time is behind a date of a signature.
func (s *signature) since(date uint32, now time.Time) int64 {
	return int64(int32(uint32(now.Unix()) - date))
}

// date returns the time of a date that is nearest to now.
func (s *signature) date(date uint32, now time.Time) time.Time {
	return time.Unix(now.Unix()-s.since(date, now), 0).UTC()
}
