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

// A Work is what validation may spend for one question, and remembers what it has found. A flight that several questions wait for has a
// Work of its own. Several goroutines may use it at once. The zero value has the default limits.
type Work struct {
	Policy Policy // not changed after the first use

	mu       sync.Mutex
	spent    int // units of verification
	wasted   int // of them, those for signatures that were wrong, or not needed
	most     int // units that may be spent; 0: as honest says
	failures int
	blocks   int
	verified map[pair]outcome
	attempts map[attempt]bool // whether the signature was right
	hashes   map[hashKey]hash
	makers   map[maker]int
}

// Spent returns how many units of verification, failed verifications and SHA-1 blocks of NSEC3 have been paid for.
func (w *Work) Spent() (verifications, failures, blocks int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spent, w.failures, w.blocks
}

// honest is how many times Policy.Verifications all signatures of a question may cost, those that are right included: 11 aliases of wildcards through
// P-384 zones with NSEC3 records take half of it.
const honest = 8

// limit returns what wrong and superfluous signatures of a question may cost.
func (w *Work) limit() int {
	if w.Policy.Verifications <= 0 {
		return defaultVerifications
	}
	return w.Policy.Verifications
}

// pay takes units of verification. It returns the limit that does not allow that, or "".
func (w *Work) pay(units int) (limit string) {
	wasted := w.limit()
	all := honest * wasted
	if w.most > 0 {
		all = w.most
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

// waste takes that units which were paid for were for a signature that is wrong, or not needed.
func (w *Work) waste(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wasted += units
}

// Spare returns a Work for what is verified for the sake of other questions, with so many units at most, or nil if w can spare none: three quarters
// of its units are for the question's own proofs. Charge takes what it has spent.
func (w *Work) Spare(units int) *Work {
	w.mu.Lock()
	defer w.mu.Unlock()
	units = min(units, w.limit()/4-w.wasted)
	if units <= 0 {
		return nil
	}
	return &Work{Policy: w.Policy, most: units}
}

// Charge takes the units of verification that were spent with another Work.
func (w *Work) Charge(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spent += units
	w.wasted += units
}

// fail counts a signature that was wrong, for which units were paid.
func (w *Work) fail(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	w.wasted += units
}

// payBlocks takes blocks of SHA-1, of those that can be spared or of all. It returns the limit that does not allow that, or "".
func (w *Work) payBlocks(n int, spare bool) (limit string) {
	most := maxNSEC3Blocks
	if spare {
		most = spareNSEC3Blocks
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocks+n > most {
		return "NSEC3 blocks"
	}
	w.blocks += n
	return ""
}

// recall returns what the memo has for a key, and whether it is there. memo must be one of w's.
func recall[K comparable, V any](w *Work, memo *map[K]V, key K) (V, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := (*memo)[key]
	return v, ok
}

// note puts what was found into a memo of w.
func note[K comparable, V any](w *Work, memo *map[K]V, key K, v V) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *memo == nil {
		*memo = make(map[K]V)
	}
	(*memo)[key] = v
}

// A maker is what a signature says of the key that has made it.
type maker struct {
	keys      *key // the first of a zone's
	tag       uint16
	algorithm uint8
}

// maker returns the place among keys of the one to try first for a signature: of several with its tag and algorithm the one that made the last
// signature. Otherwise each RRset of a zone with two such keys would be a failure.
func (w *Work) maker(keys []key, g *signature) int {
	if len(keys) == 0 {
		return 0
	}
	i, _ := recall(w, &w.makers, maker{&keys[0], g.tag, g.algorithm})
	return i
}

// made notes which key has made a signature, unless it is the first that was tried.
func (w *Work) made(keys []key, g *signature, i, first int) {
	if i != first {
		note(w, &w.makers, maker{&keys[0], g.tag, g.algorithm}, i)
	}
}

// A pair is an RRset and the keys that it was verified with.
type pair struct {
	set  *RRset
	keys *Keys
}

// An outcome is what was found.
type outcome struct {
	verified Verified
	err      error
}

// An attempt is the hash of a key, of what was signed, and of a signature. Responses to several queries of a question have the same proofs, and a
// response is judged when it comes and once more when its zone's keys are trusted.
type attempt [sha256.Size]byte

func attemptOf(k *key, sum, signature []byte) (a attempt) {
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

// A hashKey is what a hash of NSEC3 is made of.
type hashKey struct {
	name       name
	salt       string
	iterations int
}
