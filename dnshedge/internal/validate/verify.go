package validate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// Verified is what a right signature says of an RRset.
type Verified struct {
	// Status is Secure, or Unchecked if the keys are not trusted yet.
	Status Status
	// TTL is how many seconds the RRset may be kept, at most: the lowest of its own TTL, the RRSIG's, the original TTL and what is left
	// until the signature ends, which counts as 1 if there is less (RFC 4035 §5.3.3). The RRSIG is the one that was verified.
	TTL uint32
	// Expires is when the signature ends, but at least a second from now on: one that has ended is taken for a while longer, and what it signs is
	// not over before it is used.
	Expires time.Time
	// Encloser is the number of labels of the closest encloser if the RRset was made of a wildcard, and DeniesCloser must
	// prove that (RFC 4035 §5.3.4). -1: it was not.
	Encloser int
}

// Verify verifies the signatures of an RRset with the keys of a zone, and that zone's only, until one is right (RFC 4035 §5.3). The error is
// a *Reason, that of the signature that got furthest: EDE 10 without any, 9 without a key, 7 and 8 for its time, 6.
//
// The result for an RRset and keys is remembered: a second call costs nothing.
func (w *Work) Verify(s *RRset, k *Keys, now time.Time) (Verified, error) {
	return w.verify(s, k, now, false)
}

// verify is Verify. What is superfluous is so in a response to which it is not needed, and costs what wrong signatures do.
func (w *Work) verify(s *RRset, k *Keys, now time.Time, superfluous bool) (Verified, error) {
	if len(s.Sigs) == 0 { // nobody pays for the canonical form of what is not signed
		return Verified{}, &Reason{EDE: dns.ExtendedErrorCodeRRSIGsMissing, Text: textUnsigned, Zone: k.Zone(), Name: s.Name, Type: s.Type}
	}
	p := pair{s, k}
	if o, ok := recall(w, &w.verified, p); ok {
		return o.verified, o.err
	}
	var o outcome
	if g, _, r := w.try(s, k.zone, k.keys, now, superfluous); r != nil {
		o.err = r
	} else {
		o.verified = g.verified(s, now)
		if k.Trusted() {
			o.verified.Status = Secure
		}
	}
	note(w, &w.verified, p, o)
	return o.verified, o.err
}

// verified returns what a signature that is right says of its RRset, unchecked.
func (g *signature) verified(s *RRset, now time.Time) Verified {
	left := max(1, -g.since(g.until, now))
	received := ValidTTL(g.received)
	for i := range s.form().sigs {
		if same := &s.form().sigs[i]; bytes.Equal(same.bytes, g.bytes) && bytes.Equal(same.head, g.head) {
			received = min(received, ValidTTL(same.received)) // a record that is there twice (RFC 2181 §5.2)
		}
	}
	v := Verified{TTL: min(s.TTL, received, ValidTTL(g.ttl), uint32(left)), Expires: time.Unix(now.Unix()+left, 0).UTC(), Encloser: -1}
	if g.labels < signedLabels(s.form().owner) {
		v.Encloser = g.labels
	}
	return v
}

const textUnsigned = "there are no signatures"

// signedLabels is what the labels field of a signature is of a name that was not made of a wildcard (RFC 4034 §3.1.3).
func signedLabels(owner name) int {
	n := owner.labels()
	if owner.isWildcard() {
		n--
	}
	return n
}

// How far a signature got. The reason of the furthest is the one that is told.
const (
	unsigned = iota
	unfit
	untimely
	keyless
	wrong
)

// A trial is a search for a signature that is right.
type trial struct {
	work     *Work
	set      *RRset
	form     *canonical
	furthest int
	failures int
	over     bool // a limit was reached

	superfluous bool // the RRset is more than an answer needs
	reason      Reason
}

// try looks for a signature of the RRset that one of the keys of a zone has made, and returns both.
func (w *Work) try(s *RRset, zone name, keys []key, now time.Time, superfluous bool) (*signature, *key, *Reason) {
	t := &trial{work: w, set: s, form: s.form(), superfluous: superfluous}
	t.reach(unsigned, dns.ExtendedErrorCodeRRSIGsMissing, textUnsigned)
	if !t.form.ok || s.Class != dns.ClassINET || s.Type == dns.TypeRRSIG {
		t.reach(unsigned, dns.ExtendedErrorCodeDNSBogus, "the records have no form that could be signed")
		return nil, nil, t.failed(zone)
	}
	for i := range t.form.sigs {
		g := &t.form.sigs[i]
		if !t.due(g, zone, now) {
			continue
		}
		if k := t.signer(g, keys); k != nil {
			return g, k, nil
		}
		if t.over {
			break
		}
	}
	return nil, nil, t.failed(zone)
}

// failed returns the reason why no signature was right.
func (t *trial) failed(zone name) *Reason {
	t.reason.Zone, t.reason.Name, t.reason.Type = zone.String(), t.set.Name, t.set.Type
	return &t.reason
}

// reach notes how far a signature got, and why no further.
func (t *trial) reach(stage int, ede uint16, text string) {
	if stage >= t.furthest {
		t.furthest = stage
		t.reason.EDE, t.reason.Text, t.reason.From, t.reason.Until = ede, text, time.Time{}, time.Time{}
	}
}

// due reports whether a signature is to be tried.
func (t *trial) due(g *signature, zone name, now time.Time) bool {
	if !g.fits(t.form.owner, t.set.Type, zone) || !t.work.Policy.verifies(g.algorithm) {
		t.reach(unfit, dns.ExtendedErrorCodeDNSBogus, "no signature is one that the zone could have made")
		return false
	}
	early, late := g.valid(now)
	if !early && !late {
		return true
	}
	from, until := g.date(g.from, now), g.date(g.until, now)
	t.reach(untimely, untimelyEDE(early, late), fmt.Sprintf("the signature is valid from %s until %s, and the clock says %s",
		from.Format(time.RFC3339), until.Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	if t.furthest == untimely {
		t.reason.From, t.reason.Until = from, until
	}
	return false
}

// signer returns the key that has made a signature. Nil: none has, or the search is over.
func (t *trial) signer(g *signature, keys []key) *key {
	t.reach(keyless, dns.ExtendedErrorCodeDNSKEYMissing, "there is no key for the signature")
	var sum []byte
	first := t.work.maker(keys, g)
	for i := range keys {
		k := &keys[(first+i)%len(keys)]
		if k.tag != g.tag || k.algorithm != g.algorithm {
			continue
		}
		if k.verifier == nil {
			t.reach(keyless, k.reason, "the key of the signature cannot be used")
			continue
		}
		if t.failures == maxSetFailures {
			t.over, t.reason.Text = true, "too many signatures are wrong"
			return nil
		}
		units := 1 + t.form.size(g)/sizePerUnit
		if !t.pays(units) {
			return nil
		}
		if sum == nil {
			sum = digest(g.algorithm, t.form.signed(g, t.set))
		}
		as := attemptOf(k, sum, g.bytes)
		right, known := recall(t.work, &t.work.attempts, as)
		if !known {
			if !t.pays(k.verifier.cost() - 1) {
				return nil
			}
			units += k.verifier.cost() - 1
			right = k.verifier.verify(sum, g.bytes)
			note(t.work, &t.work.attempts, as, right)
		}
		if right {
			if known || t.superfluous {
				t.work.waste(units)
			}
			t.work.made(keys, g, (first+i)%len(keys), first)
			return k
		}
		t.failures++
		if known { // another server has sent it, or the same one again
			t.work.waste(units)
		} else {
			t.work.fail(units)
		}
		t.reach(wrong, dns.ExtendedErrorCodeDNSBogus, "the signature is wrong")
	}
	return nil
}

// pays pays units of verification, or ends the search.
func (t *trial) pays(units int) bool {
	limit := t.work.pay(units)
	if limit != "" {
		t.reach(wrong, dns.ExtendedErrorCodeDNSBogus, "the limit of "+limit+" was reached")
		t.over, t.reason.Limit = true, limit
	}
	return limit == ""
}

func untimelyEDE(early, late bool) uint16 {
	switch {
	case early && late:
		return dns.ExtendedErrorCodeSignatureExpiredBeforeValid
	case early:
		return dns.ExtendedErrorCodeSignatureNotYetValid
	}
	return dns.ExtendedErrorCodeSignatureExpired
}

// fits reports whether a zone may have made the signature for an owner's records of a type (RFC 4035 §5.3.1). The number of labels is not
// below the zone's: a wildcard is in the zone that signs it.
func (g *signature) fits(owner name, typ uint16, zone name) bool {
	if g.signer != zone || g.covered != typ || !owner.within(zone) || typ == dns.TypeDS && owner == zone {
		return false
	}
	lowest := zone.labels()
	if owner == zone {
		lowest = signedLabels(zone) // the asterisk of a zone's own name does not count either: RFC 4592 §4.2 allows such zones
	}
	return lowest <= g.labels && g.labels <= signedLabels(owner)
}

// sizePerUnit is how many bytes are hashed at the price of one unit of verification. A message with compressed names has up to thirty times its
// length to hash, for each of its signatures.
const sizePerUnit = 32 << 10

// size is the length of what is signed at most.
func (c *canonical) size(g *signature) int {
	n := len(g.head)
	for _, data := range c.rdata {
		n += len(c.owner) + 10 + len(data)
	}
	return n
}

// signed returns what is signed: RFC 4034 §3.1.8.1.
func (c *canonical) signed(g *signature, s *RRset) []byte {
	owner := c.owner
	if g.labels < signedLabels(owner) {
		owner, _ = owner.ancestor(g.labels).wildcard() // which is no longer than the name: it has a label less at least
	}
	b := append(make([]byte, 0, c.size(g)), g.head...)
	for _, data := range c.rdata {
		b = append(b, owner...)
		b = binary.BigEndian.AppendUint16(b, s.Type)
		b = binary.BigEndian.AppendUint16(b, s.Class)
		b = binary.BigEndian.AppendUint32(b, g.ttl)
		b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
		b = append(b, data...)
	}
	return b
}
