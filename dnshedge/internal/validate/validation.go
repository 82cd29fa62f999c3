package validate

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// The limits of a Work. A Policy changes the first only.
const (
	defaultVerifications = 128
	maxFailures          = 16   // of different signatures of a question
	maxSetFailures       = 8    // of signatures of an RRset
	maxNSEC3Blocks       = 4096 // of SHA-1, for names of a question
	spareNSEC3Blocks     = 1024 // of them, what may be spent before an answer is made of what is kept: the proofs to come need the rest
	maxKeys              = 32   // of a DNSKEY RRset that are read
	maxDS                = 16   // of a DS RRset that are read
	maxMismatches        = 4    // digests of a DS RRset that do not fit a key with their tag
)

// A Validation is what validation may spend for one question, and remembers what it has found. A flight that several questions wait for has a
// Work of its own. Several goroutines may use it at once. The zero value has the default limits.
type Validation struct {
	Policy Policy // not changed after the first use

	mu          sync.Mutex
	spent       int // units of verification
	wasted      int // of them, those for signatures that were wrong, or not needed
	maxSpent    int // units that may be spent; 0: as honest says
	failures    int
	nsec3Blocks int
	verified    map[rrsetAndKeys]verificationResult
	results     map[signatureHash]bool // whether the signature was right
	hashes      map[nsec3HashInput]nsec3Hash
	signingKeys map[keyHint]int
}

// Spent returns how many units of verification, failed verifications and SHA-1 blocks of NSEC3 have been paid for.
func (w *Validation) Spent() (verifications, failures, blocks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spent, w.failures, w.nsec3Blocks
}

// maxTotalFactor is how many times Policy.Verifications all signatures of a question may cost, those that are right included: 11 aliases of wildcards through
// P-384 zones with NSEC3 records take half of it.
const maxTotalFactor = 8

// wasteLimit returns what wrong and superfluous signatures of a question may cost.
func (w *Validation) wasteLimit() int {
	if w.Policy.Verifications <= 0 {
		return defaultVerifications
	}
	return w.Policy.Verifications
}

// payVerification takes units of verification. It returns the limit that does not allow that, or "".
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
		return "Verifications" // as Policy has it
	}
	w.spent += units
	return ""
}

// recordWaste takes that units which were paid for were for a signature that is wrong, or not needed.
func (w *Validation) recordWaste(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wasted += units
}

// SpareValidation returns a Work for what is verified for the sake of other questions, with so many units at most, or nil if w can spare none: three quarters
// of its units are for the question's own proofs. Charge takes what it has spent.
func (w *Validation) SpareValidation(units int) *Validation {
	w.mu.Lock()
	defer w.mu.Unlock()
	units = min(units, w.wasteLimit()/4-w.wasted)
	if units <= 0 {
		return nil
	}
	return &Validation{Policy: w.Policy, maxSpent: units}
}

// Charge takes the units of verification that were spent with another Work.
func (w *Validation) Charge(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spent += units
	w.wasted += units
}

// recordFailure counts a signature that was wrong, for which units were paid.
func (w *Validation) recordFailure(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	w.wasted += units
}

// payNSEC3Blocks takes blocks of SHA-1, of those that can be spared or of all. It returns the limit that does not allow that, or "".
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

// lookUpMemo returns what the memo has for a key, and whether it is there. memo must be one of w's.
func lookUpMemo[K comparable, V any](w *Validation, memo *map[K]V, key K) (V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := (*memo)[key]
	return v, ok
}

// storeMemo puts what was found into a memo of w.
func storeMemo[K comparable, V any](w *Validation, memo *map[K]V, key K, v V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *memo == nil {
		*memo = make(map[K]V)
	}
	(*memo)[key] = v
}

// A maker is what a signature says of the key that has made it.
type keyHint struct {
	keys      *dnskey // the first of a zone's
	tag       uint16
	algorithm uint8
}

// firstKeyToTry returns the place among keys of the one to try first for a signature: of several with its tag and algorithm the one that made the last
// signature. Otherwise each RRset of a zone with two such keys would be a failure.
func (w *Validation) firstKeyToTry(keys []dnskey, g *signature) int {
	if len(keys) == 0 {
		return 0
	}
	i, _ := lookUpMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm})
	return i
}

// rememberKey notes which key has made a signature, unless it is the first that was tried.
func (w *Validation) rememberKey(keys []dnskey, g *signature, i, first int) {
	if i != first {
		storeMemo(w, &w.signingKeys, keyHint{&keys[0], g.keyTag, g.algorithm}, i)
	}
}

// A rrsetAndKeys is an RRset and the keys that it was verified with.
type rrsetAndKeys struct {
	set  *RRset
	keys *Keys
}

// An verificationResult is what was found.
type verificationResult struct {
	verified Verified
	err      error
}

// An signatureHash is the hash of a key, of what was signed, and of a signature. Responses to several queries of a question have the same proofs, and a
// response is judged when it comes and once more when its zone's keys are trusted.
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

// A nsec3HashInput is what a hash of NSEC3 is made of.
type nsec3HashInput struct {
	name       name
	salt       string
	iterations int
}
