package validate

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// Limits of a Validation. Only the first can be changed, by a Policy.
const (
	defaultVerifications = 128  // default of Policy.Verifications, in units of verification
	maxFailures          = 16   // different invalid signatures of a question, after which all further verification fails
	maxSetFailures       = 8    // invalid signatures of an RRset, after which its verification fails
	maxNSEC3Blocks       = 4096 // SHA-1 blocks for the NSEC3 hashes of a question
	spareNSEC3Blocks     = 1024 // SHA-1 blocks after which an AggressiveCache computes no more hashes; the other blocks are reserved for responses
	maxKeys              = 32   // records of a DNSKEY RRset that are used
	maxDS                = 16   // records of a DS RRset that are used
	maxMismatches        = 4    // keys that have the key tag of a DS record but not its digest, after which no further key is tried
)

// A Validation limits the cryptographic work for one question, and caches the results of this work. The zero value has
// the default limits. It is safe for concurrent use.
//
// If several questions share a key lookup, the lookup uses the Validation of the question that has started it.
type Validation struct {
	Policy Policy // must not change after the first use

	mu          sync.Mutex                          // guards the following fields
	spent       int                                 // units of verification spent so far (see Policy.Verifications)
	wasted      int                                 // part of spent for invalid or superfluous signatures
	maxSpent    int                                 // limit of spent, in units; 0 means maxTotalFactor times uselessWorkLimit
	failures    int                                 // number of different invalid signatures
	nsec3Blocks int                                 // SHA-1 blocks hashed for NSEC3 so far
	verified    map[rrsetAndKeys]cachedVerification // results of Validation.Verify
	results     map[signatureCacheKey]bool          // whether a signature is valid
	hashes      map[nsec3HashInput]nsec3Hash        // computed NSEC3 hashes
	signingKeys map[keyTagAndAlgorithm]int          // index of the key that has made the last valid signature
}

// SpentWork returns the work so far: units of verification (see Policy.Verifications), the number of different invalid
// signatures, and the number of SHA-1 blocks for NSEC3 hashes.
func (v *Validation) SpentWork() (verifications, failures, blocks int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.spent, v.failures, v.nsec3Blocks
}

// maxTotalFactor times Policy.Verifications is the limit for all signatures of a question, in units of verification.
// Half of it suffices for a chain of 11 wildcard aliases in P-384 zones with NSEC3.
const maxTotalFactor = 8

// uselessWorkLimit returns the limit for useless work, in units of verification. Useless work is the verification of
// signatures that are invalid, that the response does not need (superfluous), or that were verified for the question
// before. Speculative verification is useless work, too.
//
// It is lower than the limit for all signatures: forged signatures end a validation early, while large valid answers
// pass.
func (v *Validation) uselessWorkLimit() int {
	if v.Policy.Verifications <= 0 {
		return defaultVerifications
	}
	return v.Policy.Verifications
}

// spendVerification counts units of verification before they are spent, and returns "". If they would exceed a limit,
// it counts nothing and returns the name of the limit. The signature must then not be verified.
func (v *Validation) spendVerification(units int) (limit string) {
	wasted := v.uselessWorkLimit()
	all := maxTotalFactor * wasted
	if v.maxSpent > 0 {
		all = v.maxSpent
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.failures >= maxFailures:
		return "failed verifications"
	case v.wasted > 0 && v.wasted+units > wasted, v.spent+units > all:
		return "Verifications" // the field of Policy
	}
	v.spent += units
	return ""
}

// recordUselessWork records that units of verification were spent on an invalid or superfluous signature. These have a
// lower limit than all units. The caller must have counted them with spendVerification before.
func (v *Validation) recordUselessWork(units int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wasted += units
}

// NewSpeculativeValidation returns a Validation for verifications that the present question does not need, but later
// questions may. It allows at most the given units of verification. The caller must report the spent units with
// v.ChargeSpeculative.
//
// These units count as useless work, like those for invalid and superfluous signatures (see uselessWorkLimit). All
// useless work so far and the new units must not exceed a quarter of its limit. NewSpeculativeValidation returns nil if
// that quarter is used up.
func (v *Validation) NewSpeculativeValidation(units int) *Validation {
	v.mu.Lock()
	defer v.mu.Unlock()
	units = min(units, v.uselessWorkLimit()/4-v.wasted)
	if units <= 0 {
		return nil
	}
	return &Validation{Policy: v.Policy, maxSpent: units}
}

// ChargeSpeculative counts units of verification that were spent on a Validation from NewSpeculativeValidation. They
// count towards the limit for all verifications, and towards the lower limit for useless work.
func (v *Validation) ChargeSpeculative(units int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.spent += units
	v.wasted += units
}

// recordInvalidSignature counts an invalid signature. The units of its verification count as useless work, which has a
// lower limit than all verification. The caller must not count the same signature twice.
func (v *Validation) recordInvalidSignature(units int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failures++
	v.wasted += units
}

// spendNSEC3Blocks counts n SHA-1 blocks before they are hashed for NSEC3, and returns "". If they would exceed the
// limit, it counts nothing and returns the name of the limit. The hash must then not be computed.
//
// spare must be true for hashes that only save a query. They have a lower limit, so that enough remains for the
// validation of responses.
func (v *Validation) spendNSEC3Blocks(n int, spare bool) (limit string) {
	most := maxNSEC3Blocks
	if spare {
		most = spareNSEC3Blocks
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nsec3Blocks+n > most {
		return "NSEC3 blocks"
	}
	v.nsec3Blocks += n
	return ""
}

// lookUpResult returns the result that storeResult has stored for a key. memo is the map for results of this kind, a
// field of w. The boolean is false if there is none.
func lookUpResult[K comparable, V any](w *Validation, memo *map[K]V, key K) (V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := (*memo)[key]
	return v, ok
}

// storeResult stores v, the result of an expensive cryptographic computation, so that it is not repeated. memo is the
// map for results of this kind, a field of w.
func storeResult[K comparable, V any](w *Validation, memo *map[K]V, key K, v V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *memo == nil {
		*memo = make(map[K]V)
	}
	(*memo)[key] = v
}

// A keyTagAndAlgorithm is the map key under which storeSigningKey stores which key has made the last valid signature.
// Several keys of a zone may have the same key tag and algorithm.
type keyTagAndAlgorithm struct {
	keys      *dnskey // address of the zone's first key, which identifies the zone's keys
	tag       uint16
	algorithm uint8
}

// firstKeyToTry returns the index in keys of the key with which to verify the signature g first. It is the key that has
// made the last valid signature with the same key tag and algorithm, or 0 if unknown. This saves verifications with
// wrong keys if several keys have the same key tag.
func (v *Validation) firstKeyToTry(keys []dnskey, g *signature) int {
	if len(keys) == 0 {
		return 0
	}
	i, _ := lookUpResult(v, &v.signingKeys, keyTagAndAlgorithm{&keys[0], g.keyTag, g.algorithm})
	return i
}

// storeSigningKey records that keys[i] has made the valid signature g, so that firstKeyToTry returns i for later
// signatures. first is the present result of firstKeyToTry for g. If it equals i, there is nothing to record.
func (v *Validation) storeSigningKey(keys []dnskey, g *signature, i, first int) {
	if i != first {
		storeResult(v, &v.signingKeys, keyTagAndAlgorithm{&keys[0], g.keyTag, g.algorithm}, i)
	}
}

// An rrsetAndKeys is the map key under which the result of a Validation.Verify call is cached: the arguments of the
// call.
type rrsetAndKeys struct {
	set  *RRset
	keys *Keys
}

// A cachedVerification is the cached result of a Validation.Verify call: a Verification or an error.
type cachedVerification struct {
	verified Verification
	err      error
}

// A signatureCacheKey is the map key under which the validity of a signature is stored. It is a hash of the public key,
// the hash of the signed data, and the signature.
//
// Verifications repeat, because responses to several queries of a question have the same proofs. A response is also
// verified twice: on arrival, and when the keys of its zone are trusted.
type signatureCacheKey [sha256.Size]byte

// newSignatureCacheKey returns the map key for a signature by the key k. sum is the result of hashSignedData.
func newSignatureCacheKey(k *dnskey, sum, signature []byte) (a signatureCacheKey) {
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

// An nsec3HashInput is the map key under which a computed NSEC3 hash is stored: the input of the hash.
type nsec3HashInput struct {
	name       name
	salt       string
	iterations int
}
