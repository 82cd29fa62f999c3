// Package chain builds chains of trust from trust anchors to answers, for packages recursor and dnssec. It queries the
// keys of zones in parallel with the questions, verifies them with the DS records of the parents, and determines the
// security status of answers.
//
// It knows a zone by the referral of its parent, and has no servers of its own: the caller sends its queries. Package
// validate verifies signatures and proofs.
package chain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/ranges"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A Zone is a zone as its parent has delegated it. It does not change once it is in use.
type Zone struct {
	Name        string         // absolute, in lower case
	Parent      *Zone          // nil: no referral led to the zone
	ReferredBy  netip.AddrPort // the server of the parent that sent the referral
	DSEvidence  []dns.RR       // DS records of the referral or their denial, with signatures
	ReceivedAt  time.Time      // when the referral came
	Stub        bool           // its servers are configured, and so it has no parent
	CutsUnknown bool           // no referrals are followed, and zone cuts below it are unknown
	Servers     any            // passed to WorkBudget.Query

	evidenceOnce sync.Once         // sets the fields below
	evidenceSets []*validate.RRset // of DSEvidence
	unverifiedDS *validate.DSSet   // DS records of DSEvidence; nil: there are none
	evidenceErr  error

	numberOnce     sync.Once // sets number
	referralNumber uint64
	moved          atomic.Bool // see MarkMoved

	presumed      bool // no referral led to it, and it may not exist
	namedBySigner bool // a signature names it as the signer
}

// A Response is the answer of a server of a zone. ValidateResponse and CheckResponse set the fields from Keys on.
type Response struct {
	Zone              *Zone
	From              netip.AddrPort
	Name              string // of the question, absolute, in lower case
	Type              uint16
	Rcode             int
	Answer, Authority []dns.RR // the records that may be believed once they are verified

	Keys   *validate.Keys // for a DNSKEY question: the keys, if they match the DS records
	Status validate.Status
	Reason *validate.Reason // why it is bogus or insecure; nil: an insecure zone needs no reason
	TTL    uint32           // seconds that it may be cached if it is secure
	Final  bool             // it is bogus, and no other server of its zone can answer better

	signedByZone bool // a signature matches the keys of the zone, so that no insecure zone below it has sent the answer
}

// A WorkBudget limits the work for one question of a client and sends the queries for it.
type WorkBudget interface {
	// Validation returns the limits of cryptographic work.
	Validation() *validate.Validation
	// Query sends a question to the servers of a zone, to the servers in avoid last. CheckResponse has accepted the
	// response. The error is a *validate.Reason with a Limit if the budget is exhausted.
	Query(ctx context.Context, z *Zone, name string, qtype uint16, avoid []netip.AddrPort) (*Response, error)
}

// Config has the settings of a Validator and its callbacks.
type Config struct {
	Anchors []*validate.DSSet // one set for each zone; nil: the built-in anchors of the root
	// Insecure are the negative trust anchors, absolute and in lower case.
	Insecure []string
	Policy   validate.Policy
	MaxBytes int64 // limit of the cached keys, by an estimate
	// MaxAggressiveBytes limits the memory of cached proofs from which answers are synthesized (RFC 8198). Zero: none are
	// cached.
	MaxAggressiveBytes int64

	// ReportBogus is called when a server of a zone has sent bogus data about a name.
	ReportBogus func(zone *Zone, server netip.AddrPort, name string)
	// DropReferral is called when the referral to a zone turns out to be bogus.
	DropReferral func(*Zone)
	// IsLocalError reports whether an error of WorkBudget.Query is caused by this machine, such as a lack of descriptors.
	// It says nothing of the zone and is not cached. It returns false for nil. Nil: no error is local.
	IsLocalError func(error) bool
	// Go starts a goroutine. Its context ends when the owner is closed.
	Go func(func(context.Context))
}

// A Validator validates answers along chains of trust and caches the keys of zones. It is safe for concurrent use.
type Validator struct {
	conf       Config
	anchors    trustAnchors
	aggressive *ranges.Cache
	Counts     Counters

	mu         sync.Mutex // guards the fields below
	keyCache   map[string]*zoneKeys
	lookups    map[string]*keyLookup
	bytes      int64 // size of keyCache
	rootStatus rootStatus
}

// NewValidator returns a Validator without cached keys.
func NewValidator(conf Config) *Validator {
	if conf.IsLocalError == nil {
		conf.IsLocalError = func(error) bool { return false }
	}
	return &Validator{conf: conf, anchors: newTrustAnchors(conf.Anchors, conf.Insecure), aggressive: ranges.NewCache(conf.MaxAggressiveBytes), keyCache: make(map[string]*zoneKeys), lookups: make(map[string]*keyLookup)}
}

// Policy returns the policy that each validate.Validation must have.
func (c *Validator) Policy() validate.Policy { return c.conf.Policy }

// ShouldValidate reports whether the answer to a question is validated: the nearest trust anchor at or above its zone is
// not negative. DS records belong to the parent zone.
func (c *Validator) ShouldValidate(name string, qtype uint16) bool {
	if qtype == dns.TypeDS && name != "." {
		name = dnsname.Parent(name)
	}
	a := c.anchors.closestTo(name)
	return a != nil && a.ds != nil
}

// HasAnchorWithin reports whether a trust anchor or a negative trust anchor lies at or below a name.
func (c *Validator) HasAnchorWithin(name string) bool {
	for zone := range c.anchors {
		if dnsname.IsWithin(zone, name) {
			return true
		}
	}
	return false
}

// ExpectsSignatures reports whether a zone is signed with a supported algorithm according to its parent or a trust anchor.
// The DS records may be unverified.
func (c *Validator) ExpectsSignatures(z *Zone) bool {
	for ; z != nil; z = z.Parent {
		if r := c.applicableKeys(z, time.Now()); r != nil {
			return r.status == validate.Secure
		}
		a := c.anchors.closestTo(z.Name)
		switch {
		case a == nil || a.ds == nil:
			return false
		case a.zone == z.Name:
			return !z.Stub || !a.builtIn
		}
		if ds := z.unverifiedDSSet(); ds == nil || ds.UnsupportedReason(c.conf.Policy) != nil {
			return false
		}
	}
	return false
}

// unverifiedDSSet returns the DS records of the referral, which are not verified, or nil.
func (z *Zone) unverifiedDSSet() *validate.DSSet {
	_, _ = z.parseEvidence()
	return z.unverifiedDS
}

// lastReferralID is the last number that referralID has assigned.
var lastReferralID atomic.Uint64

// referralID returns a number that identifies the referral to the zone: two referrals, even at the same time, have
// different numbers. It is 0 without a referral.
func (z *Zone) referralID() uint64 {
	if z.Parent == nil || z.presumed {
		return 0
	}
	z.numberOnce.Do(func() { z.referralNumber = lastReferralID.Add(1) })
	return z.referralNumber
}

// MarkMoved records that the zone has other servers than the referral said. Data that the old servers sent about child
// zones must not be used any more.
func (z *Zone) MarkMoved() { z.moved.Store(true) }

// HasMoved reports whether MarkMoved was called for the zone or for one of its ancestors. Its data must then not be used.
func (z *Zone) HasMoved() bool {
	for ; z != nil; z = z.Parent {
		if z.moved.Load() {
			return true
		}
	}
	return false
}

// HasMovedFor reports whether the zone has moved, seen from a zone found through another referral.
func (z *Zone) HasMovedFor(other *Zone) bool { return z.HasMoved() && !other.HasMoved() }

// errUnreadableEvidence means that reading the evidence of a referral has panicked.
var errUnreadableEvidence = errors.New("the proof of a referral could not be read")

// parseEvidence returns the RRsets of DSEvidence, always the same, so that verification results are remembered.
func (z *Zone) parseEvidence() ([]*validate.RRset, error) {
	z.evidenceOnce.Do(func() {
		var all [][]*validate.RRset
		z.evidenceErr = errUnreadableEvidence // unless GroupRRsets returns
		if all, z.evidenceErr = validate.GroupRRsets(z.DSEvidence); z.evidenceErr == nil {
			z.evidenceSets = all[0]
			if ds := findRRset(z.evidenceSets, z.Name, dns.TypeDS); ds != nil {
				z.unverifiedDS = validate.UnverifiedDS(ds)
			}
		}
	})
	return z.evidenceSets, z.evidenceErr
}

// findRRset returns the RRset of a name and type, or nil.
func findRRset(sets []*validate.RRset, name string, typ uint16) *validate.RRset {
	for _, s := range sets {
		if s.Type == typ && dnsname.ToLower(s.Name) == name {
			return s
		}
	}
	return nil
}

// selectDSEvidence returns the DS RRset of a zone among the sets, or nil, and the sets to verify: the DS RRset alone, or
// all.
func selectDSEvidence(said []*validate.RRset, zone string) (ds *validate.RRset, evidence []*validate.RRset) {
	if ds = findRRset(said, zone, dns.TypeDS); ds != nil {
		return ds, []*validate.RRset{ds}
	}
	return nil, said
}

// hasSignature reports whether an RRset has a signature.
func hasSignature(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return len(s.Sigs) > 0 })
}
