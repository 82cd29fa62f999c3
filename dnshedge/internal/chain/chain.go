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
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/aggressive"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A Zone is a DNS zone as one referral from its parent zone describes it: a delegation, the evidence for its DS
// records, and its servers. Two referrals to the same zone result in two Zones. It must not be changed after its
// first use, and is then safe for concurrent use.
type Zone struct {
	Name        string         // absolute, in lower case
	Parent      *Zone          // nil if no referral led to the zone
	ReferredBy  netip.AddrPort // address of the parent zone's server that sent the referral
	DSEvidence  []dns.RR       // DS records of the referral, or the proof that there are no DS records, with signatures
	ReceivedAt  time.Time      // time at which the referral was received
	Stub        bool           // the zone's servers are configured, so that the zone has no parent
	CutsUnknown bool           // the caller follows no referrals, so that zone cuts below the zone are unknown
	Servers     any            // servers of the zone, a value of the caller for its implementation of ValidationBudget.Query

	evidenceOnce sync.Once         // sets the next three fields
	evidenceSets []*validate.RRset // RRsets of DSEvidence
	unverifiedDS *validate.DSSet   // DS records of DSEvidence, not verified yet; nil if there are none
	evidenceErr  error             // why DSEvidence cannot be parsed, or nil

	numberOnce     sync.Once   // sets referralNumber
	referralNumber uint64      // see referralID
	redelegated    atomic.Bool // set by MarkRedelegated

	withoutReferral bool // no referral led to the zone, so that the zone may not exist
	namedBySigner   bool // a signature names the zone as its signer
}

// A Response is the response of a zone's server to one question, with the result of its validation. The caller sets the
// fields from Zone to Authority. CheckResponse and ValidateResponse set the others.
type Response struct {
	Zone              *Zone
	From              netip.AddrPort // address of the server; zero if unknown
	Name              string         // name of the question, absolute, in lower case
	Type              uint16
	Rcode             int
	Answer, Authority []dns.RR // records, not verified until Status is Secure

	Keys   *validate.Keys // keys of the zone, if this is a DNSKEY response that matches the DS records; otherwise nil
	Status validate.Status
	Reason *validate.Reason // why the answer is bogus or insecure; nil for an ordinary unsigned zone
	TTL    uint32           // seconds for which a secure answer may be cached
	Final  bool             // the answer is bogus, and other servers of the zone cannot have a better answer

	signedByZone bool // the zone has signed at least part of the answer, so that the answer is not from an insecure child zone
}

// A ValidationBudget is implemented by the caller of a Validator: it limits the work of validation for one question of a
// client, and sends the DS and DNSKEY queries that validation needs, within its limits. It must be safe for concurrent use.
type ValidationBudget interface {
	// Validation returns the limits of the cryptographic work for the question.
	Validation() *validate.Validation
	// Query sends a question to the servers of the zone z, and returns a response that CheckResponse has accepted. The
	// servers in avoid have sent bogus data. They are queried last.
	//
	// If the budget is exhausted, the error is a *validate.Reason with a Limit.
	Query(ctx context.Context, z *Zone, name string, qtype uint16, avoid []netip.AddrPort) (*Response, error)
}

// A Config holds the trust anchors, limits and callbacks of a Validator.
type Config struct {
	Anchors []*validate.DSSet // trust anchors, one set for each zone; nil means the built-in trust anchors of the root
	// Insecure are the names of negative trust anchors (RFC 7646), absolute and in lower case.
	Insecure []string
	Policy   validate.Policy
	MaxBytes int64 // limit of the estimated memory of cached keys, in bytes
	// MaxAggressiveBytes limits the estimated memory, in bytes, of cached proofs from which answers are synthesized (RFC
	// 8198). If it is 0, proofs are not cached.
	MaxAggressiveBytes int64

	// ReportBogus is called when a server of a zone has sent bogus data about a name, so that the caller can avoid the
	// server.
	ReportBogus func(zone *Zone, server netip.AddrPort, name string)
	// DropReferral is called when the referral to a zone turns out to be bogus or outdated. The caller must remove it from
	// its cache.
	DropReferral func(*Zone)
	// IsLocalError reports whether an error of ValidationBudget.Query has its cause on this machine, such as a lack of file
	// descriptors. A local error does not affect the status of a zone, and is not cached.
	//
	// IsLocalError must return false for a nil error. If the field is nil, errors are never local.
	IsLocalError func(error) bool
	// Go runs a function in a new goroutine. The context of the function must end when the caller is closed.
	Go func(func(context.Context))

	// Logger receives warnings about bogus zones and about the root's keys. If it is nil, nothing is logged. LogSource is
	// the name of the caller's package, with which each message begins.
	Logger    *slog.Logger
	LogSource string
}

// A Validator determines the security status of answers, along chains of trust from the trust anchors. It caches the
// keys of zones. It is safe for concurrent use.
type Validator struct {
	conf       *Config
	anchors    trustAnchors
	aggressive *aggressive.Cache // verified proofs, for synthesis of answers (RFC 8198)
	Counts     Counters
	log        validationLog

	mu         sync.Mutex            // guards the following fields, except the contents of rootKeyStatus
	keyCache   map[string]*keyEntry  // by zone name
	lookups    map[string]*keyLookup // running key lookups, by zone name
	bytes      int64                 // estimated memory of keyCache, in bytes
	rootStatus rootKeyStatus
}

// NewValidator returns a Validator with the configuration conf and an empty key cache.
func NewValidator(conf Config) *Validator {
	if conf.IsLocalError == nil {
		conf.IsLocalError = func(error) bool { return false }
	}
	return &Validator{conf: &conf, anchors: newTrustAnchors(conf.Anchors, conf.Insecure), aggressive: aggressive.NewCache(conf.MaxAggressiveBytes), keyCache: make(map[string]*keyEntry), lookups: make(map[string]*keyLookup)}
}

// Policy returns the validation policy of the Config. Each validate.Validation that is passed to the Validator must
// have this policy.
func (c *Validator) Policy() validate.Policy { return c.conf.Policy }

// ShouldValidate reports whether the answer to a question must be validated. It is true if there is a trust anchor at
// or above the name, and no negative trust anchor is nearer. For DS, the parent of the name counts, because DS records
// are in the parent zone.
func (c *Validator) ShouldValidate(name string, qtype uint16) bool {
	if qtype == dns.TypeDS && name != "." {
		name = dnsname.Parent(name)
	}
	a := c.anchors.nearestAnchor(name)
	return a != nil && a.ds != nil
}

// HasAnchorWithin reports whether the name, or a descendant of it, has a trust anchor or a negative trust anchor.
func (c *Validator) HasAnchorWithin(name string) bool {
	for zone := range c.anchors {
		if dnsname.IsWithin(zone, name) {
			return true
		}
	}
	return false
}

// HasAnchorBelow reports whether a trust anchor or a negative trust anchor for a name is below the zone ancestor. Bogus
// data of the ancestor then does not make the name bogus.
func (c *Validator) HasAnchorBelow(ancestor, name string) bool {
	a := c.anchors.nearestAnchor(name)
	return a != nil && dnsname.IsBelow(a.zone, ancestor)
}

// ExpectsSignatures reports whether a zone is probably signed with a supported algorithm, so that a response without
// signatures should be rejected. It sends no query: it decides by the key cache, the trust anchors, and the DS records
// of referrals. The signatures of these DS records may be unverified.
func (c *Validator) ExpectsSignatures(z *Zone) bool {
	for ; z != nil; z = z.Parent {
		if r := c.applicableEntry(z, time.Now()); r != nil {
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
		if z.Parent != nil && dnsname.IsBelow(a.zone, z.Parent.Name) { // the servers of z.Parent serve the zone of the anchor too
			return true
		}
	}
	return false
}

// unverifiedDSSet returns the DS records of the referral, whose signatures are not verified. It returns nil if the
// referral has no DS records.
func (z *Zone) unverifiedDSSet() *validate.DSSet {
	_, _ = z.parseDSEvidence()
	return z.unverifiedDS
}

// lastReferralID is the last number that referralID has assigned to a Zone.
var lastReferralID atomic.Uint64

// referralID returns a number that identifies the referral to the zone. Each Zone with a referral has a different
// number. It is 0 if no referral led to the zone.
func (z *Zone) referralID() uint64 {
	if z.Parent == nil || z.withoutReferral {
		return 0
	}
	z.numberOnce.Do(func() { z.referralNumber = lastReferralID.Add(1) })
	return z.referralNumber
}

// MarkRedelegated records that the zone has been delegated to other servers since its referral. Data from the old
// servers must not be used any more.
func (z *Zone) MarkRedelegated() { z.redelegated.Store(true) }

// IsRedelegated reports whether MarkRedelegated was called for the zone or an ancestor. Data from the servers of the
// zone must then not be used.
func (z *Zone) IsRedelegated() bool {
	for ; z != nil; z = z.Parent {
		if z.redelegated.Load() {
			return true
		}
	}
	return false
}

// IsOutdatedFor reports whether a lookup for z is useless for other, a Zone with the same name. This is so if the
// delegation of z has been replaced by a newer one, and that of other has not.
func (z *Zone) IsOutdatedFor(other *Zone) bool { return z.IsRedelegated() && !other.IsRedelegated() }

// errUnreadableEvidence is the error of a referral whose DS records or proof cannot be parsed, because a method of a
// record has panicked.
var errUnreadableEvidence = errors.New("the proof of a referral could not be read")

// parseDSEvidence returns the RRsets of DSEvidence. The first call parses them. All calls return the same RRsets,
// because results of verification are cached by the address of the RRset.
func (z *Zone) parseDSEvidence() ([]*validate.RRset, error) {
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

// findRRset returns the RRset with the given name and type, or nil if there is none among sets. name must be in lower
// case.
func findRRset(sets []*validate.RRset, name string, typ uint16) *validate.RRset {
	for _, s := range sets {
		if s.Type == typ && dnsname.ToLower(s.Name) == name {
			return s
		}
	}
	return nil
}

// selectDSEvidence selects the RRsets of a response that determine whether a zone has DS records. If sets has the
// zone's DS RRset, ds is this RRset, and evidence holds nothing else. Otherwise ds is nil, and evidence holds all sets,
// which should prove that the zone has no DS records.
func selectDSEvidence(sets []*validate.RRset, zone string) (ds *validate.RRset, evidence []*validate.RRset) {
	if ds = findRRset(sets, zone, dns.TypeDS); ds != nil {
		return ds, []*validate.RRset{ds}
	}
	return nil, sets
}

// hasSignature reports whether at least one of the sets has an RRSIG record, valid or not.
func hasSignature(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return len(s.Sigs) > 0 })
}

// TrustFingerprint returns a string that identifies a configuration of trust anchors, negative trust anchors
// (insecure) and flags, so that stored results of another configuration can be discarded. The order of anchors and
// names does not matter.
func TrustFingerprint(anchors []dns.RR, insecure []string, flags ...bool) string {
	records := make([]string, 0, len(anchors))
	for _, rr := range anchors {
		if !usercode.IsNilRecord(rr) {
			own := dns.Copy(rr)
			own.Header().Name, own.Header().Ttl, own.Header().Rdlength = dns.CanonicalName(own.Header().Name), 0, 0
			records = append(records, own.String())
		}
	}
	names := make([]string, 0, len(insecure))
	for _, name := range insecure {
		names = append(names, dns.CanonicalName(name))
	}
	slices.Sort(records)
	slices.Sort(names)
	return fmt.Sprintf("%v %q %q %v", anchors == nil, slices.Compact(records), slices.Compact(names), flags)
}

// ReadTrust sets Anchors and Insecure from a user's DS and DNSKEY records and names. If records is nil, the built-in
// trust anchors of the root are used.
//
// The error names the invalid record or name. It begins with field, the name of the configuration in the user's code.
func (conf *Config) ReadTrust(field string, records []dns.RR, names []string) error {
	zones := make(map[string][]dns.RR)
	for i, rr := range records {
		if usercode.IsNilRecord(rr) {
			return fmt.Errorf("%s.Anchors has a nil record at index %d; want DS or DNSKEY", field, i)
		}
		name, ok := dnsname.CanonicalName(rr.Header().Name)
		if !ok {
			return fmt.Errorf("%s.Anchors has name %q; want a domain name", field, rr.Header().Name)
		}
		zones[name] = append(zones[name], rr)
	}
	if records != nil {
		conf.Anchors = []*validate.DSSet{}
	}
	for _, rrs := range zones {
		ds, err := validate.TrustAnchors(rrs...)
		if err != nil {
			return fmt.Errorf("%s.Anchors: %w", field, err)
		}
		conf.Anchors = append(conf.Anchors, ds)
	}
	for _, spelled := range names {
		name, ok := dnsname.CanonicalName(spelled)
		if !ok || spelled == "" {
			return fmt.Errorf("%s.Insecure has %q; want a domain name", field, spelled)
		}
		if strings.HasPrefix(name, "*.") {
			return fmt.Errorf("%s.Insecure has %q; want %q, which covers all names below it", field, spelled, name[2:])
		}
		conf.Insecure = append(conf.Insecure, name)
	}
	return nil
}
