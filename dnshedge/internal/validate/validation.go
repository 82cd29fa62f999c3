package validate

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// Limits of a Validation. A Policy changes only the first.
const (
	defaultVerifications = 128
	maxFailures          = 16   // different invalid signatures of a question
	maxSetFailures       = 8    // invalid signatures of an RRset
	maxNSEC3Blocks       = 4096 // SHA-1 blocks for NSEC3 hashes of a question
	spareNSEC3Blocks     = 1024 // of these, for answers from an AggressiveCache; later proofs need the rest
	maxKeys              = 32   // records of a DNSKEY RRset that are read
	maxDS                = 16   // records of a DS RRset that are read
	maxMismatches        = 4    // DS digests that do not match a key with their tag
)

// A Validation limits the work of validating one question and remembers results. A key lookup that several questions share
// has its own Validation. It is safe for concurrent use. The zero value has the default limits.
type Validation struct {
	Policy Policy // must not change after the first use

	mu          sync.Mutex
	spent       int // units of verification
	wasted      int // of spent, for invalid or superfluous signatures
	maxSpent    int // limit of spent; 0: maxTotalFactor times the limit of wasted
	failures    int
	nsec3Blocks int // SHA-1 blocks for NSEC3 hashes
	verified    map[rrsetAndKeys]verificationResult
	results     map[signatureHash]bool // whether the signature is valid
	hashes      map[nsec3HashInput]nsec3Hash
	signingKeys map[keyHint]int // index of the key that made the last signature
}

// Spent returns the units of verification, the invalid signatures and the SHA-1 blocks for NSEC3 so far.
func (w *Validation) Spent() (verifications, failures, blocks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spent, w.failures, w.nsec3Blocks
}

// maxTotalFactor times Policy.Verifications is the limit for all signatures of a question. 11 aliases through wildcards in
// P-384 zones with NSEC3 need half of it.
const maxTotalFactor = 8

// wasteLimit returns the limit for invalid and superfluous signatures, in units.
func (w *Validation) wasteLimit() int {
	if w.Policy.Verifications <= 0 {
		return defaultVerifications
	}
	return w.Policy.Verifications
}

// payVerification spends units of verification. It returns the name of the limit that forbids it, or "".
func (w *Validation) payVerification(units int) (limit string) {
	wasted := w.wasteLimit()
	all := maxTotalFactor * wasted
	if w.maxSpent > 0 {
		all = w.maxSpent
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failures >= maxFailures:
		return "failed verifications"
	case w.wasted > 0 && w.wasted+units > wasted, w.spent+units > all:
		return "Verifications" // the field of Policy
	}
	w.spent += units
	return ""
}

// recordWaste counts spent units as those of an invalid or superfluous signature.
func (w *Validation) recordWaste(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wasted += units
}

// SpareValidation returns a Validation of at most the given units for data that other questions need. It returns nil if w
// has no units to spare: three quarters of its limit are reserved for the question's own proofs. Charge must be called
// with the units spent.
func (w *Validation) SpareValidation(units int) *Validation {
	w.mu.Lock()
	defer w.mu.Unlock()
	units = min(units, w.wasteLimit()/4-w.wasted)
	if units <= 0 {
		return nil
	}
	return &Validation{Policy: w.Policy, maxSpent: units}
}

// Charge adds units of verification that were spent in a SpareValidation.
func (w *Validation) Charge(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spent += units
	w.wasted += units
}

// recordFailure counts an invalid signature on which units were spent.
func (w *Validation) recordFailure(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	w.wasted += units
}

// payNSEC3Blocks spends SHA-1 blocks. It returns the name of the limit that forbids it, or "". With spare, the limit is
// spareNSEC3Blocks.
func (w *Validation) payNSEC3Blocks(n int, spare bool) (limit string) {
	most := maxNSEC3Blocks
	if spare {
		most = spareNSEC3Blocks
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nsec3Blocks+n > most {
		return "NSEC3 blocks"
	}
	w.nsec3Blocks += n
	return ""
}

// lookUpMemo returns the remembered value for a key, and whether there is one. memo must belong to w.
func lookUpMemo[K comparable, V any](w *Validation, memo *map[K]V, key K) (V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := (*memo)[key]
	return v, ok
}

// storeMemo remembers a value for a key. memo must belong to w.
func storeMemo[K comparable, V any](w *Validation, memo *map[K]V, key K, v V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *memo == nil {
		*memo = make(map[K]V)
	}
	(*memo)[key] = v
}

// A keyHint identifies the keys of a zone with one tag and algorithm.
type keyHint struct {
	keys      *dnskey // the first key of the zone
	tag       uint16
	algorithm uint8
}

// firstKeyToTry returns the index of the key to try first for a signature: of several keys with its tag and algorithm, the
// one that made the last signature. Otherwise each RRset of such a zone would count a failure.
func (w *Validation) firstKeyToTry(keys []dnskey, g *signature) int {
	if len(keys) == 0 {
		return 0
	}
	i, _ := lookUpMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm})
	return i
}

// rememberKey stores that keys[i] made the signature g, so that firstKeyToTry returns i next time. It does nothing if i is first, the key that was
// tried first.
func (w *Validation) rememberKey(keys []dnskey, g *signature, i, first int) {
	if i != first {
		storeMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm}, i)
	}
}

// rrsetAndKeys is the key of the memo of Verify.
type rrsetAndKeys struct {
	set  *RRset
	keys *Keys
}

// verificationResult is the value of the memo of Verify.
type verificationResult struct {
	verified Verified
	err      error
}

// A signatureHash is the hash of a key, a signed hash and a signature. The responses to several queries of a question have
// the same proofs. A response is also verified twice: on arrival, and when its zone's keys are trusted.
type signatureHash [sha256.Size]byte

func hashSignatureCheck(k *dnskey, sum, signature []byte) (a signatureHash) {
	h := sha256.New()
	for _, b := range [...][]byte{k.data, sum, signature} {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	h.Sum(a[:0])
	return a
}

// An nsec3HashInput has the inputs of an NSEC3 hash.
type nsec3HashInput struct {
	name       name
	salt       string
	iterations int
}
