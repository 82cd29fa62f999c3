package validate

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// Limits of a Validation. Only the first can be changed, by a Policy.
const (
	defaultVerifications = 128  // default of Policy.Verifications
	maxFailures          = 16   // different invalid signatures of a question, after which all further verification fails
	maxSetFailures       = 8    // invalid signatures of an RRset, after which its verification fails
	maxNSEC3Blocks       = 4096 // SHA-1 blocks for the NSEC3 hashes of a question
	spareNSEC3Blocks     = 1024 // part of these for answers from an AggressiveCache; later proofs need the rest
	maxKeys              = 32   // records of a DNSKEY RRset that are used
	maxDS                = 16   // records of a DS RRset that are used
	maxMismatches        = 4    // DS digests that differ from that of a key with the same tag, after which no further key is tried
)

// A Validation limits the work of validating one question, and caches the results of verification. A key lookup that
// several questions share has a Validation of its own. The zero value has the default limits. It is safe for concurrent
// use.
type Validation struct {
	Policy Policy // must not change after the first use

	mu          sync.Mutex
	spent       int                                 // units of verification spent so far
	wasted      int                                 // units of these for invalid or superfluous signatures
	maxSpent    int                                 // limit of spent; 0: maxTotalFactor times wasteLimit
	failures    int                                 // number of different invalid signatures
	nsec3Blocks int                                 // SHA-1 blocks computed for NSEC3 hashes
	verified    map[rrsetAndKeys]verificationResult // results of Verify
	results     map[signatureHash]bool              // whether the signature is valid
	hashes      map[nsec3HashInput]nsec3Hash        // NSEC3 hashes
	signingKeys map[keyHint]int                     // index of the key that made the last valid signature
}

// Spent returns the work so far: units of verification, different invalid signatures, and SHA-1 blocks for NSEC3
// hashes.
func (w *Validation) Spent() (verifications, failures, blocks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spent, w.failures, w.nsec3Blocks
}

// maxTotalFactor times Policy.Verifications is the limit for all signatures of a question. A chain of 11 wildcard
// aliases in P-384 zones with NSEC3 needs half of it.
const maxTotalFactor = 8

// wasteLimit returns the limit for invalid and superfluous signatures, in units of verification.
func (w *Validation) wasteLimit() int {
	if w.Policy.Verifications <= 0 {
		return defaultVerifications
	}
	return w.Policy.Verifications
}

// spendVerification spends units of verification. If a limit forbids that, it spends none and returns the name of the
// limit. Otherwise it returns "".
func (w *Validation) spendVerification(units int) (limit string) {
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

// recordWaste counts units that were spent as waste: the signature was invalid or superfluous.
func (w *Validation) recordWaste(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wasted += units
}

// SpareValidation returns a Validation of at most the given units for data that only other questions need. It returns
// nil if w has no units to spare: three quarters of wasteLimit are reserved for the question's own proofs. The caller
// must pass the spent units to Charge.
func (w *Validation) SpareValidation(units int) *Validation {
	w.mu.Lock()
	defer w.mu.Unlock()
	units = min(units, w.wasteLimit()/4-w.wasted)
	if units <= 0 {
		return nil
	}
	return &Validation{Policy: w.Policy, maxSpent: units}
}

// Charge adds the units that were spent in a Validation from SpareValidation. They count as waste.
func (w *Validation) Charge(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spent += units
	w.wasted += units
}

// recordFailure counts a new invalid signature. units is the cost of its verification.
func (w *Validation) recordFailure(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	w.wasted += units
}

// spendNSEC3Blocks spends n SHA-1 blocks. If a limit forbids that, it spends none and returns the name of the limit.
// Otherwise it returns "". If spare is set, the limit is spareNSEC3Blocks.
func (w *Validation) spendNSEC3Blocks(n int, spare bool) (limit string) {
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

// lookUpMemo returns the value for a key in memo, a map of w, and whether there is one.
func lookUpMemo[K comparable, V any](w *Validation, memo *map[K]V, key K) (V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := (*memo)[key]
	return v, ok
}

// storeMemo stores a value for a key in memo, a map of w.
func storeMemo[K comparable, V any](w *Validation, memo *map[K]V, key K, v V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *memo == nil {
		*memo = make(map[K]V)
	}
	(*memo)[key] = v
}

// A keyHint identifies the keys of a zone that share a key tag and an algorithm.
type keyHint struct {
	keys      *dnskey // the first key of the zone
	tag       uint16
	algorithm uint8
}

// firstKeyToTry returns the index of the key to try first for a signature. Of several keys with the signature's tag and
// algorithm, that is the one that made the last valid signature. Otherwise each RRset of the zone would cost an invalid
// signature.
func (w *Validation) firstKeyToTry(keys []dnskey, g *signature) int {
	if len(keys) == 0 {
		return 0
	}
	i, _ := lookUpMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm})
	return i
}

// rememberKey stores that keys[i] made the signature g, for firstKeyToTry. first is the key that was tried first; if i
// is first, nothing is stored.
func (w *Validation) rememberKey(keys []dnskey, g *signature, i, first int) {
	if i != first {
		storeMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm}, i)
	}
}

// An rrsetAndKeys is the key of a cached result of Verify.
type rrsetAndKeys struct {
	set  *RRset
	keys *Keys
}

// A verificationResult is a cached result of Verify.
type verificationResult struct {
	verified Verified
	err      error
}

// A signatureHash identifies the verification of a signature: it is the hash of the key, the signed hash and the
// signature. Verifications repeat, because responses to several queries of a question have the same proofs. A response
// is also verified twice: on arrival, and when the keys of its zone are trusted.
type signatureHash [sha256.Size]byte

// hashSignatureCheck returns the signatureHash of a key, a signed hash and a signature.
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

// An nsec3HashInput identifies a cached NSEC3 hash.
type nsec3HashInput struct {
	name       name
	salt       string
	iterations int
}
