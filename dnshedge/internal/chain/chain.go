// Package chain follows the chains of trust from anchors to answers, for package recursor: it asks for the keys of zones beside the
// questions to them, verifies what their parents say of them, and says what an answer is worth.
//
// It knows zones by what their parents have said when they referred to them, and has no servers of its own: whoever uses it asks
// them. What signatures and proofs mean is package validate's matter.
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

// Zone is a zone as its parent has referred to it. It is not changed once it is in use.
type Zone struct {
	Name        string         // absolute, in lower case
	Parent      *Zone          // the zone whose server referred to it; nil: none did
	ReferredBy  netip.AddrPort // that server
	DSEvidence  []dns.RR       // what it said of the zone's keys: DS records, or what may deny them, with signatures
	ReceivedAt  time.Time      // when
	Stub        bool           // a user has said where it is served, and so it has no parent
	CutsUnknown bool           // there may be zones between it and a name that nobody has referred to
	Servers     any            // for Bill.Ask

	evidenceOnce sync.Once         // sets the fields below
	evidenceSets []*validate.RRset // of Proof
	unverifiedDS *validate.DSSet   // the DS records in it; nil: there are none
	evidenceErr  error

	numberOnce     sync.Once // sets number
	referralNumber uint64
	moved          atomic.Bool

	// Of zones that no referral told of.
	presumed      bool // nobody knows whether there is such a zone
	namedBySigner bool // a signature says so
}

// Response is what a server of a zone has answered. Prove and Judge set the last fields.
type Response struct {
	Zone              *Zone
	From              netip.AddrPort
	Name              string // that was asked for, absolute, in lower case
	Type              uint16
	Rcode             int
	Answer, Authority []dns.RR // what is believed of it, if it is right

	Keys   *validate.Keys // that were asked for, if they fit what is said of them
	Status validate.Status
	Reason *validate.Reason // why it is bogus, or insecure; nil: that needs no reason
	TTL    uint32           // how many seconds it may be kept, if it is secure
	Final  bool             // it is bogus for its zone, and no other server's answer would be better

	signedByZone bool // a signature of the answer fits the keys of the zone: the answer is of no insecure zone below it
}

// WorkBudget pays for what a question needs, and has it done.
type WorkBudget interface {
	// Validation is what validation may spend.
	Validation() *validate.Validation
	// Query asks the servers of a zone, those to avoid after all others. Judge has seen the responses. The error is a *validate.Reason with a
	// Limit if the question could not pay for that.
	Query(ctx context.Context, z *Zone, name string, qtype uint16, avoid []netip.AddrPort) (*Response, error)
}

// Config is what chains need of their user.
type Config struct {
	Anchors []*validate.DSSet // of one zone each; nil: the root's that are built in
	// Insecure are names below which nothing is validated, absolute and in lower case.
	Insecure []string
	Policy   validate.Policy
	MaxBytes int64 // that what is kept of zones' keys takes, by an estimate
	// MaxAggressiveBytes is how many bytes take what is kept of zones' proofs, to answer other questions with it (RFC 8198). Zero: nothing is kept.
	MaxAggressiveBytes int64

	// ReportBogus takes that a server of a zone has sent what is bogus, about a name.
	ReportBogus func(zone *Zone, server netip.AddrPort, name string)
	// DropReferral takes that what was said of a zone below another one is bogus.
	DropReferral func(*Zone)
	// IsLocalError reports whether an error of Bill.Ask is this machine's, such as a lack of descriptors: it says nothing of a zone, and is not kept. Of nil it
	// reports false. Nil: no error is.
	IsLocalError func(error) bool
	// Go starts a goroutine, whose context ends with the user.
	Go func(func(context.Context))
}

// Validator is what is known of the keys of zones. It is safe for concurrent use.
type Validator struct {
	conf       Config
	anchors    trustAnchors
	aggressive *ranges.Cache
	Counts     Counters

	mu         sync.Mutex // guards the fields below
	keyCache   map[string]*zoneKeys
	lookups    map[string]*keyLookup
	bytes      int64 // that rings take
	rootStatus rootStatus
}

// New returns chains that begin at anchors.
func NewValidator(conf Config) *Validator {
	if conf.IsLocalError == nil {
		conf.IsLocalError = func(error) bool { return false }
	}
	return &Validator{conf: conf, anchors: newTrustAnchors(conf.Anchors, conf.Insecure), aggressive: ranges.NewCache(conf.MaxAggressiveBytes), keyCache: make(map[string]*zoneKeys), lookups: make(map[string]*keyLookup)}
}

// Policy returns that of the Works that pay.
func (c *Validator) Policy() validate.Policy { return c.conf.Policy }

// ShouldValidate reports whether what a question asks for is to be validated: there is an anchor at or above its zone, and nothing that
// forbids it is nearer. What is said of DS records is the parent's.
func (c *Validator) ShouldValidate(name string, qtype uint16) bool {
	if qtype == dns.TypeDS && name != "." {
		name = dnsname.Parent(name)
	}
	a := c.anchors.closestTo(name)
	return a != nil && a.ds != nil
}

// HasAnchorWithin reports whether a chain begins at a name or below it, or nothing is validated from there down.
func (c *Validator) HasAnchorWithin(name string) bool {
	for zone := range c.anchors {
		if dnsname.IsWithin(zone, name) {
			return true
		}
	}
	return false
}

// ExpectsSignatures reports whether the parent of a zone says that it is signed in a way that is supported, or an anchor does. Nobody
// has verified that, perhaps.
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

// unverifiedDSSet returns the DS records in what was said of the zone, which nobody has verified, or nil.
func (z *Zone) unverifiedDSSet() *validate.DSSet {
	_, _ = z.parseEvidence()
	return z.unverifiedDS
}

// lastReferralID is of how many referrals something was bogus.
var lastReferralID atomic.Uint64

// referralID returns the number of the referral that told of a zone: of two, which may come at one time, each has another one. 0: none has.
func (z *Zone) referralID() uint64 {
	if z.Parent == nil || z.presumed {
		return 0
	}
	z.numberOnce.Do(func() { z.referralNumber = lastReferralID.Add(1) })
	return z.referralNumber
}

// MarkMoved takes that the zone is served elsewhere than it was said to be. What those servers have said of zones below is no more to be used.
func (z *Zone) MarkMoved() { z.moved.Store(true) }

// HasMoved reports whether the zone, or one that it was found through, is served elsewhere.
func (z *Zone) HasMoved() bool {
	for ; z != nil; z = z.Parent {
		if z.moved.Load() {
			return true
		}
	}
	return false
}

// HasMovedFor reports whether the zone is served elsewhere, for one to whom another referral told of it.
func (z *Zone) HasMovedFor(other *Zone) bool { return z.HasMoved() && !other.HasMoved() }

// errUnreadableEvidence is why nothing is known of a zone's proof: reading it has panicked.
var errUnreadableEvidence = errors.New("the proof of a referral could not be read")

// parseEvidence returns the RRsets of what was said of the zone, always the same: what was verified of them is remembered.
func (z *Zone) parseEvidence() ([]*validate.RRset, error) {
	z.evidenceOnce.Do(func() {
		var all [][]*validate.RRset
		z.evidenceErr = errUnreadableEvidence // unless Sets returns
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

// selectDSEvidence returns the DS records of a zone among what was said of it, or nil, and what is to be verified: these alone, or all.
func selectDSEvidence(said []*validate.RRset, zone string) (ds *validate.RRset, evidence []*validate.RRset) {
	if ds = findRRset(said, zone, dns.TypeDS); ds != nil {
		return ds, []*validate.RRset{ds}
	}
	return nil, said
}

// hasSignature reports whether there is a signature of one of the RRsets.
func hasSignature(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return len(s.Sigs) > 0 })
}
