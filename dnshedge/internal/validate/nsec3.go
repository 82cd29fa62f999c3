package validate

import (
	"bytes"
	"crypto/sha1"
	"encoding/base32"
	"encoding/binary"
	"slices"

	"github.com/miekg/dns"
)

// An nsec3Hash is the iterated SHA-1 hash of an owner name (RFC 5155 §5).
type nsec3Hash [sha1.Size]byte

// An nsec3 is an NSEC3 record with a valid signature that was not expanded from a wildcard.
type nsec3 struct {
	owner, next nsec3Hash
	optOut      bool
	types       typeBitmap
	denialRecord
}

// An nsec3Set holds NSEC3 records of one zone, from which it draws conclusions about names and types that do not exist.
// All records should have the same salt and number of iterations.
//
// The records are sorted by owner hash in an AggressiveCache, but not in a response.
type nsec3Set struct {
	records            []*nsec3
	sorted             bool
	salt               string
	iterations         int
	hasMixedParameters bool        // the records differ in salt or iterations
	work               *Validation // limits and caches the computation of hashes
	usesSpareBlocks    bool        // the limit of work is spareNSEC3Blocks
	limit              string      // name of the limit that prevented the computation of a hash; "" if none did
}

const nsec3Fixed = 5 // bytes of the record data before the salt (RFC 5155 §3.2)

// maxNSEC3Iterations returns the highest number of iterations among the records of an RRset in canonical form. typ is
// the type of the RRset. If it is not NSEC3, the result is 0.
func maxNSEC3Iterations(typ uint16, c *canonicalRRset) (most int) {
	for _, data := range c.rdata {
		if typ == dns.TypeNSEC3 && len(data) >= nsec3Fixed {
			most = max(most, int(binary.BigEndian.Uint16(data[2:])))
		}
	}
	return most
}

// addRecord parses an NSEC3 record of the zone, and adds it to the set. v is the result of its verification. It ignores
// a malformed record, and a record with unknown parameters (RFC 5155 §3.2, §8.1 and 8.2).
//
// The parent of the owner name must be the zone's apex, the hash algorithm must be SHA-1, and opt-out must be the only
// flag.
func (s *nsec3Set) addRecord(owner name, data []byte, zone name, v Verification) {
	r := &nsec3{denialRecord: denialRecord{verified: v}}
	if owner.parent() != zone || owner == root || !decodeOwnerHash(&r.owner, owner[1:1+owner[0]]) {
		return
	}
	if len(data) < nsec3Fixed || data[0] != dns.SHA1 || data[1] > 1 {
		return
	}
	r.optOut = data[1] == 1
	iterations, n := int(binary.BigEndian.Uint16(data[2:])), int(data[4])
	data = data[nsec3Fixed:]
	if len(data) < n+1+sha1.Size || data[n] != sha1.Size {
		return
	}
	salt := string(data[:n])
	copy(r.next[:], data[n+1:])
	if r.types = typeBitmap(data[n+1+sha1.Size:]); !r.types.isWellFormed() {
		return
	}
	s.hasMixedParameters = s.hasMixedParameters || len(s.records) > 0 && (s.salt != salt || s.iterations != iterations)
	s.salt, s.iterations = salt, iterations
	s.records = append(s.records, r)
}

var base32hex = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding) // base32hex is the encoding of hashes in owner names, in lower case (RFC 5155 §3.3)

// decodeOwnerHash decodes label, the leftmost label of an NSEC3 owner name, into h. It returns false if the label is
// not an encoded SHA-1 hash.
func decodeOwnerHash(h *nsec3Hash, label name) bool {
	if len(label) != base32hex.EncodedLen(sha1.Size) {
		return false
	}
	n, err := base32hex.Decode(h[:], []byte(label))
	return err == nil && n == sha1.Size
}

// hashName returns the NSEC3 hash of a name, with the parameters of the set. The boolean is false if SHA-1 is not
// allowed in this process, or if a limit was reached.
func (s *nsec3Set) hashName(n name) (nsec3Hash, bool) {
	if s.limit != "" || !sha1Allowed() {
		return nsec3Hash{}, false
	}
	k := nsec3HashInput{n, s.salt, s.iterations}
	if h, ok := lookUpResult(s.work, &s.work.hashes, k); ok {
		return h, true
	}
	blocks := countSHA1Blocks(len(n)+len(s.salt)) + s.iterations*countSHA1Blocks(sha1.Size+len(s.salt))
	if s.limit = s.work.spendNSEC3Blocks(blocks, s.usesSpareBlocks); s.limit != "" {
		return nsec3Hash{}, false
	}
	var buf [maxName + 256]byte
	b := append(append(buf[:0], n...), s.salt...)
	h := nsec3Hash(sha1.Sum(b))
	for range s.iterations {
		h = sha1.Sum(append(append(buf[:0], h[:]...), s.salt...))
	}
	storeResult(s.work, &s.work.hashes, k, h)
	return h, true
}

// countSHA1Blocks returns the number of 64-byte blocks that SHA-1 processes for n bytes of data, including the
// padding. This is the cost of a hash for NSEC3.
func countSHA1Blocks(n int) int { return (n + 9 + sha1.BlockSize - 1) / sha1.BlockSize }

// candidateRecords returns the records that may match or cover the hash h. If the set is sorted, this is at most one
// record, otherwise all records. The last record covers hashes before the first owner hash.
func (s *nsec3Set) candidateRecords(h nsec3Hash) []*nsec3 {
	if !s.sorted || len(s.records) == 0 {
		return s.records
	}
	i, _ := s.searchOwnerHash(h)
	if i == 0 {
		i = len(s.records)
	}
	return s.records[i-1 : i]
}

// searchOwnerHash returns the number of records whose owner hash is at most h. This is the index at which a record with
// the owner hash h is to be inserted. found is true if the last of these records has the owner hash h. The set must be
// sorted.
func (s *nsec3Set) searchOwnerHash(h nsec3Hash) (n int, found bool) {
	n, found = slices.BinarySearchFunc(s.records, h, func(r *nsec3, h nsec3Hash) int { return bytes.Compare(r.owner[:], h[:]) })
	if found {
		n++
	}
	return n, found
}

// matchingRecord returns the record whose owner hash is the hash of q. It returns nil if there is none, or if the hash
// cannot be computed.
func (s *nsec3Set) matchingRecord(q name) *nsec3 {
	h, ok := s.hashName(q)
	if !ok {
		return nil
	}
	for _, r := range s.candidateRecords(h) {
		if r.owner == h {
			return r
		}
	}
	return nil
}

// coveringRecord returns a record that covers q: the hash of q is between the record's owner hash and its next hash.
// The next hash of the last record of a zone is the first owner hash.
//
// It returns nil if no record covers q, or if the hash cannot be computed.
func (s *nsec3Set) coveringRecord(q name) *nsec3 {
	h, ok := s.hashName(q)
	if !ok {
		return nil
	}
	for _, r := range s.candidateRecords(h) {
		after, before := bytes.Compare(r.owner[:], h[:]) < 0, bytes.Compare(h[:], r.next[:]) < 0
		if last := bytes.Compare(r.owner[:], r.next[:]) >= 0; after && before || last && (after || before) && r.owner != h {
			return r
		}
	}
	return nil
}

// findClosestEncloserProof searches for the closest encloser proof of q in the zone (RFC 5155 §8.3). It returns the
// closest encloser, the record that matches the encloser (at), and the record that covers the next closer name (next).
//
// If there is no proof, next is nil.
func (s *nsec3Set) findClosestEncloserProof(q, zone name) (encloser name, at, next *nsec3) {
	for closer := q; closer != zone; closer = closer.parent() {
		encloser = closer.parent()
		if at = s.matchingRecord(encloser); at == nil {
			if s.limit != "" {
				return encloser, nil, nil
			}
			continue
		}
		if at.types.isDelegationOrDNAME() {
			return encloser, nil, nil
		}
		return encloser, at, s.coveringRecord(closer)
	}
	return encloser, nil, nil
}

// proveDenial determines whether the NSEC3 records prove that the name q, or the records of type qtype at q, do not
// exist. The rules are those of RFC 5155 §8.4 to 8.7. zone is the zone of q. The kind of the result is NameError,
// NoData, NoDS or Unproven.
func (s *nsec3Set) proveDenial(q name, qtype uint16, zone name) proofResult {
	if r := s.matchingRecord(q); r != nil {
		return proofResult{kind: r.types.denialAtOwner(q, qtype), usedRecords: []*denialRecord{&r.denialRecord}}
	}
	encloser, at, next := s.findClosestEncloserProof(q, zone)
	if next == nil {
		return proofResult{}
	}
	f := proofResult{optOut: next.optOut, usedRecords: []*denialRecord{&at.denialRecord, &next.denialRecord}}
	if qtype == dns.TypeDS && next.optOut {
		f.kind = NoDS
		return f
	}
	f.kind = NameError
	wild, ok := encloser.wildcardName()
	if !ok {
		return f
	}
	if r := s.matchingRecord(wild); r != nil {
		if r.types.isDelegation() || !r.types.deniesType(qtype) {
			return proofResult{}
		}
		f.kind, f.usedRecords = NoData, append(f.usedRecords, &r.denialRecord)
		return f
	}
	if r := s.coveringRecord(wild); r != nil {
		f.usedRecords = append(f.usedRecords, &r.denialRecord)
		return f
	}
	if next.optOut { // an empty non-terminal with only insecure delegations below has no record (RFC 5155, erratum 3441)
		f.kind = NoData
		return f
	}
	return proofResult{}
}

// proveNoCloserMatch determines whether the records prove that q has no closer match than a wildcard: the next closer
// name, which has one label more than the closest encloser, does not exist. q may then be the expansion of the
// wildcard. encloser is the number of labels of the closest encloser.
//
// The kind of the result is NoCloserMatch, or Unproven if there is no proof.
func (s *nsec3Set) proveNoCloserMatch(q name, encloser int) proofResult {
	r := s.coveringRecord(q.trimToLabels(encloser + 1))
	if r == nil {
		return proofResult{}
	}
	return proofResult{kind: NoCloserMatch, optOut: r.optOut, usedRecords: []*denialRecord{&r.denialRecord}}
}
