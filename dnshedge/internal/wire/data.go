package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"
)

// requiresData reports whether a record of the given type is malformed if its data is empty. It returns false for types
// that package dns does not know, and for types that permit empty data.
func requiresData(typ uint16) bool {
	_, ok := dns.TypeToRR[typ]
	return ok && typ != dns.TypeOPT && typ != dns.TypeAPL && typ != dns.TypeNULL
}

// A dataLayout describes the data of a record type as a sequence of four parts: bytes of a fixed number, character
// strings (RFC 1035 §3.3), names, and again bytes of a fixed number. Each part may be empty.
type dataLayout struct {
	before  int  // number of fixed bytes before the strings
	strings int  // number of character strings
	names   int  // number of names
	after   int  // number of fixed bytes after the names
	more    bool // further data may follow
}

// dataLayouts holds the layout of each record type whose data is always checked. These are addresses, and types whose
// data may contain compressed names (RFC 1035 §3.3, RFC 3597 §4). Package dns accepts truncated data of these types,
// and writes different data for it.
var dataLayouts = map[uint16]dataLayout{
	dns.TypeA: {before: 4}, dns.TypeAAAA: {before: 16}, dns.TypeOPT: {more: true},
	dns.TypeNS: {names: 1}, dns.TypeMD: {names: 1}, dns.TypeMF: {names: 1}, dns.TypeCNAME: {names: 1}, dns.TypeMB: {names: 1},
	dns.TypeMG: {names: 1}, dns.TypeMR: {names: 1}, dns.TypePTR: {names: 1}, dns.TypeDNAME: {names: 1},
	dns.TypeSOA: {names: 2, after: 20}, dns.TypeMINFO: {names: 2}, dns.TypeRP: {names: 2},
	dns.TypeMX: {before: 2, names: 1}, dns.TypeAFSDB: {before: 2, names: 1}, dns.TypeRT: {before: 2, names: 1},
	dns.TypePX: {before: 2, names: 2}, dns.TypeSRV: {before: 6, names: 1}, dns.TypeNAPTR: {before: 4, strings: 3, names: 1},
	dns.TypeSIG: {before: 18, names: 1, more: true}, dns.TypeRRSIG: {before: 18, names: 1, more: true}, dns.TypeNXT: {names: 1, more: true},
}

// isLossy reports whether package dns would change the data of r, a record of the message b, when it parses and writes
// the record. The caller must then treat r as a record of unknown type, whose data is copied.
func isLossy(b []byte, r messageRecord) bool {
	switch r.typ {
	case dns.TypeTXT, dns.TypeSPF, dns.TypeNINFO, dns.TypeAVC:
		return false
	case dns.TypeAPL: // package dns makes eight allocations for each prefix
		if len(r.data) > maxPrefixListLength {
			return true
		}
	case dns.TypeNSEC, dns.TypeNSEC3: // package dns drops zero bytes at the end of a bitmap window
		return requiredFields[r.typ].lacksFields(r.data) || hasTrailingZeros(r.data, findTypeBitmap(r.typ, r.data))
	case dns.TypeDS, dns.TypeDNSKEY, dns.TypeNSEC3PARAM:
		return requiredFields[r.typ].lacksFields(r.data)
	case dns.TypeSVCB, dns.TypeHTTPS:
		return wouldChangeSVCB(r.data)
	case dns.TypeHIP: // compressed names are invalid (RFC 8005 §5), and expanding thousands may take quadratic time
		if requiredFields[r.typ].lacksFields(r.data) || hasCompressedName(r.data, 4+int(r.data[0])+int(binary.BigEndian.Uint16(r.data[2:]))) {
			return true
		}
	}
	if _, ok := dataLayouts[r.typ]; ok || dns.TypeToRR[r.typ] == nil || len(r.data) == 0 {
		return false
	}
	off := r.ttl + 6
	rr, _, err := dns.UnpackRRWithHeader(dns.RR_Header{Name: ".", Rrtype: r.typ, Class: r.class, Rdlength: uint16(len(r.data))}, b[:off+len(r.data)], off)
	if err != nil {
		return false // unpackRecord makes a dns.RFC3597 of it
	}
	const owner = 11 // length of the root name and of the fixed part of a record
	buf := make([]byte, dns.Len(rr)+len(r.data))
	end, err := dns.PackRR(rr, buf, 0, nil, false)
	if err != nil {
		return true
	}
	if !isSelfContained(r) { // package dns may have expanded names
		return requiredFields[r.typ].lacksFields(r.data)
	}
	return !bytes.Equal(buf[owner:end], r.data)
}

// maxPrefixListLength is the maximum length of the data of an APL record that is not treated as a record of unknown
// type.
const maxPrefixListLength = 4 << 10

// requiredFields holds the first fields of record data, by type. Package dns reads missing fields as zero bytes. It
// only has types whose data isLossy does not always compare.
var requiredFields = map[uint16]dataLayout{
	dns.TypeDS: {before: 4}, dns.TypeDNSKEY: {before: 4}, dns.TypeNSEC3: {before: 4, strings: 2}, dns.TypeNSEC3PARAM: {before: 4, strings: 1},
	dns.TypeIPSECKEY: {before: 3}, dns.TypeAMTRELAY: {before: 2}, dns.TypeHIP: {before: 4},
}

// lacksFields reports whether data is too short for the fixed bytes and the character strings with which the layout l
// begins. Package dns would replace missing bytes by zeros.
func (l dataLayout) lacksFields(data []byte) bool {
	off := l.before
	for range l.strings {
		if off >= len(data) {
			return true
		}
		off += 1 + int(data[off])
	}
	return off > len(data)
}

// findTypeBitmap returns the offset of the type bitmap in the data of an NSEC or NSEC3 record. The offset is at or
// beyond the end of data if there is no bitmap, or if the record has a compressed name.
func findTypeBitmap(typ uint16, data []byte) int {
	off := 0
	if typ == dns.TypeNSEC3 {
		for _, fixed := range [...]int{4, 0} { // bytes before the salt's length, and before the hash's length
			if off += fixed; off >= len(data) {
				return len(data)
			}
			off += 1 + int(data[off])
		}
		return off
	}
	for off < len(data) && data[off] != 0 {
		if data[off] >= 0xc0 {
			return len(data) // a compressed name is invalid (RFC 4034 §4.1.1)
		}
		off += 1 + int(data[off])
	}
	return off + 1
}

// wouldChangeSVCB reports whether package dns would write other data for an SVCB or HTTPS record than it has parsed.
// data is the data of the record. Package dns drops empty ALPN identifiers and sorts mandatory keys (RFC 9460 §7.1.1,
// §8).
func wouldChangeSVCB(data []byte) bool {
	off, err := skipName(data, 2)
	for err == nil && off+4 <= len(data) {
		key, n := binary.BigEndian.Uint16(data[off:]), int(binary.BigEndian.Uint16(data[off+2:]))
		off += 4
		value := data[off:min(off+n, len(data))]
		off += n
		switch dns.SVCBKey(key) {
		case dns.SVCB_MANDATORY:
			for i := 2; i+2 <= len(value); i += 2 {
				if bytes.Compare(value[i-2:i], value[i:i+2]) > 0 {
					return true
				}
			}
		case dns.SVCB_ALPN:
			for i := 0; i < len(value); i += 1 + int(value[i]) {
				if value[i] == 0 {
					return true
				}
			}
		}
	}
	return false
}

// hasCompressedName reports whether the names in data, from the offset off on, include a compressed or malformed name.
// data must contain only names from off on.
func hasCompressedName(data []byte, off int) bool {
	for off < len(data) {
		end, err := skipName(data, off)
		if err != nil || !isUncompressed(data[off:end]) {
			return true
		}
		off = end
	}
	return false
}

// hasTrailingZeros reports whether the type bitmap at the offset off is invalid because one of its windows ends with a
// zero byte (RFC 4034 §4.1.2).
func hasTrailingZeros(data []byte, off int) bool {
	for off+2 <= len(data) {
		off += 2 + int(data[off+1])
		if off <= len(data) && data[off-1] == 0 {
			return true
		}
	}
	return false
}

// matchesRecord reports whether the data of the record r has the layout l. r must be a record of the message b. It does
// not check whether compression pointers are valid.
func (l dataLayout) matchesRecord(b []byte, r messageRecord) bool {
	end := r.ttl + 6 + len(r.data)
	off := end - len(r.data) + l.before
	for range l.strings {
		if off >= end {
			return false
		}
		off += 1 + int(b[off])
	}
	for range l.names {
		if off >= end {
			return false
		}
		next, err := skipName(b, off)
		if err != nil {
			return false
		}
		off = next
	}
	off += l.after
	return off == end || l.more && off < end
}

// isSelfContained reports whether the data of r certainly contains no compressed name, so that it has the same meaning
// in any message. It returns false for rare types that may contain names. The type of r must not be in dataLayouts.
func isSelfContained(r messageRecord) bool {
	off := 0
	switch r.typ {
	case dns.TypeNSEC:
	case dns.TypeSVCB, dns.TypeHTTPS:
		off = 2
	case dns.TypeKX, dns.TypeLP, dns.TypeNSAPPTR, dns.TypeTALINK, dns.TypeHIP, dns.TypeIPSECKEY, dns.TypeAMTRELAY,
		dns.TypeTKEY, dns.TypeTSIG: // rare
		return false
	default:
		return true
	}
	// A compressed name is invalid here (RFC 3597 §4), but package dns would expand it.
	end, err := skipName(r.data, off)
	return err == nil && isUncompressed(r.data[off:end])
}
