// Package chain builds chains of trust from trust anchors to answers, for packages recursor and dnssec. It queries the
// keys of zones in parallel with the questions. It verifies them with the DS records of the parents, and determines the
// security status of answers.
//
// A zone is identified by the referral of its parent. The caller sends the queries to the servers. Package validate
// verifies signatures and proofs.
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

// A Zone is a zone as the referral of its parent describes it. It does not change once it is in use.
type Zone struct {
	Name        string         // absolute, in lower case
	Parent      *Zone          // nil: no referral led to the zone
	ReferredBy  netip.AddrPort // address of the parent's server that sent the referral
	DSEvidence  []dns.RR       // DS records of the referral, or the proof that there are none, with signatures
	ReceivedAt  time.Time      // time of the referral
	Stub        bool           // the zone's servers are configured, so that it has no parent
	CutsUnknown bool           // no referrals are followed, so that zone cuts below the zone are unknown
	Servers     any            // the caller's value for the servers, for WorkBudget.Query

	evidenceOnce sync.Once         // sets the fields below
	evidenceSets []*validate.RRset // RRsets of DSEvidence
	unverifiedDS *validate.DSSet   // DS records of DSEvidence; nil: none
	evidenceErr  error

	numberOnce     sync.Once   // sets number
	referralNumber uint64      // see referralID
	moved          atomic.Bool // see MarkMoved

	isPresumed    bool // no referral led to the zone, and it may not exist
	namedBySigner bool // a signature names the zone as its signer
}

// A Response is the response of a zone's server to a question. ValidateResponse and CheckResponse set the fields from
// Keys on.
type Response struct {
	Zone              *Zone
	From              netip.AddrPort
	Name              string // name of the question, absolute, in lower case
	Type              uint16
	Rcode             int
	Answer, Authority []dns.RR // records that may be used once they are verified

	Keys   *validate.Keys // for a DNSKEY question, the keys if they match the DS records
	Status validate.Status
	Reason *validate.Reason // why the answer is bogus or insecure; nil for an ordinary insecure zone
	TTL    uint32           // seconds for which a secure answer may be cached
	Final  bool             // the answer is bogus, and no other server of the zone can have a better one

	signedByZone bool // a signature by the keys of the zone is valid, so that no insecure zone below has sent the answer
}

// A WorkBudget limits the work for one question of a client, and sends the queries that the question needs.
type WorkBudget interface {
	// Validation returns the limits of the cryptographic work.
	Validation() *validate.Validation
	// Query sends a question to the servers of a zone. Servers in avoid are asked last. The response has passed
	// CheckResponse. If the budget is exhausted, the error is a *validate.Reason with a Limit.
	Query(ctx context.Context, z *Zone, name string, qtype uint16, avoid []netip.AddrPort) (*Response, error)
}

// A Config holds the settings and callbacks of a Validator.
type Config struct {
	Anchors []*validate.DSSet // one set for each zone; nil: the built-in trust anchors of the root
	// Insecure are the negative trust anchors, absolute and in lower case.
	Insecure []string
	Policy   validate.Policy
	MaxBytes int64 // limit of the estimated memory of cached keys
	// MaxAggressiveBytes limits the estimated memory of cached proofs from which answers are synthesized (RFC 8198). 0: no
	// proofs are cached.
	MaxAggressiveBytes int64

	// ReportBogus is called when a server of a zone has sent bogus data about a name.
	ReportBogus func(zone *Zone, server netip.AddrPort, name string)
	// DropReferral is called when the referral to a zone is found to be bogus or outdated. The caller must not use it
	// again.
	DropReferral func(*Zone)
	// IsLocalError reports whether an error of WorkBudget.Query has its cause on this machine, such as a lack of file
	// descriptors. Such an error does not affect the status of a zone and is not cached. It must return false for nil. If
	// the field is nil, no error is local.
	IsLocalError func(error) bool
	// Go starts a goroutine. Its context must end when the owner is closed.
	Go func(func(context.Context))
}

// A Validator validates answers along chains of trust and caches the keys of zones. It is safe for concurrent use.
type Validator struct {
	conf       Config
	anchors    trustAnchors
	aggressive *ranges.Cache // verified proofs for synthesis
	Counts     Counters

	mu         sync.Mutex // guards the fields below
	keyCache   map[string]*zoneKeys
	lookups    map[string]*keyLookup
	bytes      int64 // estimated memory of keyCache
	rootStatus rootStatus
}

// NewValidator returns a Validator without cached keys.
func NewValidator(conf Config) *Validator {
	if conf.IsLocalError == nil {
		conf.IsLocalError = func(error) bool { return false }
	}
	return &Validator{conf: conf, anchors: newTrustAnchors(conf.Anchors, conf.Insecure), aggressive: ranges.NewCache(conf.MaxAggressiveBytes), keyCache: make(map[string]*zoneKeys), lookups: make(map[string]*keyLookup)}
}

// Policy returns the policy that each validate.Validation must use.
func (c *Validator) Policy() validate.Policy { return c.conf.Policy }

// ShouldValidate reports whether the answer to a question must be validated: the nearest trust anchor at or above its
// zone is no negative trust anchor. For DS, the zone is the parent zone.
func (c *Validator) ShouldValidate(name string, qtype uint16) bool {
	if qtype == dns.TypeDS && name != "." {
		name = dnsname.Parent(name)
	}
	a := c.anchors.nearestAnchor(name)
	return a != nil && a.ds != nil
}

// HasAnchorWithin reports whether there is a trust anchor or a negative trust anchor at or below a name.
func (c *Validator) HasAnchorWithin(name string) bool {
	for zone := range c.anchors {
		if dnsname.IsWithin(zone, name) {
			return true
		}
	}
	return false
}

// ExpectsSignatures reports whether a zone should be signed with a supported algorithm. It considers the key cache, the
// trust anchors and the DS records of referrals, which may be unverified.
func (c *Validator) ExpectsSignatures(z *Zone) bool {
	for ; z != nil; z = z.Parent {
		if r := c.applicableKeys(z, time.Now()); r != nil {
			return r.status == validate.Secure
		}
		a := c.anchors.nearestAnchor(z.Name)
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

// unverifiedDSSet returns the unverified DS records of the referral, or nil if there are none.
func (z *Zone) unverifiedDSSet() *validate.DSSet {
	_, _ = z.parseEvidence()
	return z.unverifiedDS
}

// lastReferralID is the last ID that referralID has assigned.
var lastReferralID atomic.Uint64

// referralID returns an ID that is unique for the referral to the zone. It is 0 if no referral led to the zone.
func (z *Zone) referralID() uint64 {
	if z.Parent == nil || z.isPresumed {
		return 0
	}
	z.numberOnce.Do(func() { z.referralNumber = lastReferralID.Add(1) })
	return z.referralNumber
}

// MarkMoved records that the zone has other servers than its referral says. Data of the old servers about child zones
// must not be used any more.
func (z *Zone) MarkMoved() { z.moved.Store(true) }

// HasMoved reports whether MarkMoved was called for the zone or an ancestor. Its data must then not be used.
func (z *Zone) HasMoved() bool {
	for ; z != nil; z = z.Parent {
		if z.moved.Load() {
			return true
		}
	}
	return false
}

// HasMovedFor reports whether z has moved and other, the same zone through another referral, has not.
func (z *Zone) HasMovedFor(other *Zone) bool { return z.HasMoved() && !other.HasMoved() }

// errUnreadableEvidence means that parsing the evidence of a referral has panicked.
var errUnreadableEvidence = errors.New("the proof of a referral could not be read")

// parseEvidence returns the RRsets of DSEvidence. All calls return the same RRsets, so that results of verification are
// cached.
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

// findRRset returns the RRset with the given name, in lower case, and type. It returns nil if there is none.
func findRRset(sets []*validate.RRset, name string, typ uint16) *validate.RRset {
	for _, s := range sets {
		if s.Type == typ && dnsname.ToLower(s.Name) == name {
			return s
		}
	}
	return nil
}

// selectDSEvidence returns the DS RRset of a zone, or nil if there is none among the sets. evidence are the sets to
// verify: only the DS RRset, or all sets, which should then deny DS.
func selectDSEvidence(said []*validate.RRset, zone string) (ds *validate.RRset, evidence []*validate.RRset) {
	if ds = findRRset(said, zone, dns.TypeDS); ds != nil {
		return ds, []*validate.RRset{ds}
	}
	return nil, said
}

// hasSignature reports whether any of the RRsets has a signature.
func hasSignature(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return len(s.Sigs) > 0 })
}
