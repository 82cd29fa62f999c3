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
	Name    string         // absolute, in lower case
	Above   *Zone          // the zone whose server referred to it; nil: none did
	From    netip.AddrPort // that server
	Proof   []dns.RR       // what it said of the zone's keys: DS records, or what may deny them, with signatures
	Came    time.Time      // when
	Stub    bool           // a user has said where it is served, and so it has no parent
	Far     bool           // there may be zones between it and a name that nobody has referred to
	Servers any            // for Bill.Ask

	once   sync.Once         // sets the fields below
	sets   []*validate.RRset // of Proof
	said   *validate.DSSet   // the DS records in it; nil: there are none
	setErr error

	numbered sync.Once // sets number
	number   uint64
	disowned atomic.Bool

	// Of zones that no referral told of.
	guessed bool // nobody knows whether there is such a zone
	claimed bool // a signature says so
}

// Said is what a server of a zone has answered. Prove and Judge set the last fields.
type Said struct {
	Zone              *Zone
	From              netip.AddrPort
	Name              string // that was asked for, absolute, in lower case
	Type              uint16
	Rcode             int
	Answer, Authority []dns.RR // what is believed of it, if it is right

	Keys   *validate.Keys // that were asked for, if they fit what is said of them
	Status validate.Status
	Why    *validate.Reason // why it is bogus, or insecure; nil: that needs no reason
	TTL    uint32           // how many seconds it may be kept, if it is secure
	Final  bool             // it is bogus for its zone, and no other server's answer would be better

	inZone bool // a signature of the answer fits the keys of the zone: the answer is of no insecure zone below it
}

// Bill pays for what a question needs, and has it done.
type Bill interface {
	// Work is what validation may spend.
	Work() *validate.Work
	// Ask asks the servers of a zone, those to avoid after all others. Judge has seen the responses. The error is a *validate.Reason with a
	// Limit if the question could not pay for that.
	Ask(ctx context.Context, z *Zone, name string, qtype uint16, avoid []netip.AddrPort) (*Said, error)
}

// Config is what chains need of their user.
type Config struct {
	Anchors []*validate.DSSet // of one zone each; nil: the root's that are built in
	// Insecure are names below which nothing is validated, absolute and in lower case.
	Insecure []string
	Policy   validate.Policy
	MaxBytes int64 // that what is kept of zones' keys takes, by an estimate
	// MaxRanges is how many bytes take what is kept of zones' proofs, to answer other questions with it (RFC 8198). Zero: nothing is kept.
	MaxRanges int64

	// Blame takes that a server of a zone has sent what is bogus, about a name.
	Blame func(zone *Zone, server netip.AddrPort, name string)
	// Drop takes that what was said of a zone below another one is bogus.
	Drop func(*Zone)
	// IsLocal reports whether an error of Bill.Ask is this machine's, such as a lack of descriptors: it says nothing of a zone, and is not kept. Of nil it
	// reports false. Nil: no error is.
	IsLocal func(error) bool
	// Go starts a goroutine, whose context ends with the user.
	Go func(func(context.Context))
}

// Chains is what is known of the keys of zones. It is safe for concurrent use.
type Chains struct {
	conf    Config
	anchors anchors
	ranges  *ranges.Ranges
	Counts  Counts

	mu     sync.Mutex // guards the fields below
	rings  map[string]*ring
	flying map[string]*flight
	bytes  int64 // that rings take
	root   root
}

// New returns chains that begin at anchors.
func New(conf Config) *Chains {
	if conf.IsLocal == nil {
		conf.IsLocal = func(error) bool { return false }
	}
	return &Chains{conf: conf, anchors: newAnchors(conf.Anchors, conf.Insecure), ranges: ranges.New(conf.MaxRanges), rings: make(map[string]*ring), flying: make(map[string]*flight)}
}

// Policy returns that of the Works that pay.
func (c *Chains) Policy() validate.Policy { return c.conf.Policy }

// Covers reports whether what a question asks for is to be validated: there is an anchor at or above its zone, and nothing that
// forbids it is nearer. What is said of DS records is the parent's.
func (c *Chains) Covers(name string, qtype uint16) bool {
	if qtype == dns.TypeDS && name != "." {
		name = dnsname.Parent(name)
	}
	a := c.anchors.of(name)
	return a != nil && a.ds != nil
}

// BeginBelow reports whether a chain begins at a name or below it, or nothing is validated from there down.
func (c *Chains) BeginBelow(name string) bool {
	for zone := range c.anchors {
		if dnsname.Within(zone, name) {
			return true
		}
	}
	return false
}

// Promised reports whether the parent of a zone says that it is signed in a way that is supported, or an anchor does. Nobody
// has verified that, perhaps.
func (c *Chains) Promised(z *Zone) bool {
	for ; z != nil; z = z.Above {
		if r := c.known(z, time.Now()); r != nil {
			return r.status == validate.Secure
		}
		a := c.anchors.of(z.Name)
		switch {
		case a == nil || a.ds == nil:
			return false
		case a.zone == z.Name:
			return !z.Stub || !a.builtIn
		}
		if ds := z.ds(); ds == nil || ds.Unsupported(c.conf.Policy) != nil {
			return false
		}
	}
	return false
}

// ds returns the DS records in what was said of the zone, which nobody has verified, or nil.
func (z *Zone) ds() *validate.DSSet {
	_, _ = z.proof()
	return z.said
}

// numbers is of how many referrals something was bogus.
var numbers atomic.Uint64

// referral returns the number of the referral that told of a zone: of two, which may come at one time, each has another one. 0: none has.
func (z *Zone) referral() uint64 {
	if z.Above == nil || z.guessed {
		return 0
	}
	z.numbered.Do(func() { z.number = numbers.Add(1) })
	return z.number
}

// Disown takes that the zone is served elsewhere than it was said to be. What those servers have said of zones below is no more to be used.
func (z *Zone) Disown() { z.disowned.Store(true) }

// Disowned reports whether the zone, or one that it was found through, is served elsewhere.
func (z *Zone) Disowned() bool {
	for ; z != nil; z = z.Above {
		if z.disowned.Load() {
			return true
		}
	}
	return false
}

// StrangeTo reports whether the zone is served elsewhere, for one to whom another referral told of it.
func (z *Zone) StrangeTo(other *Zone) bool { return z.Disowned() && !other.Disowned() }

// errProof is why nothing is known of a zone's proof: reading it has panicked.
var errProof = errors.New("the proof of a referral could not be read")

// proof returns the RRsets of what was said of the zone, always the same: what was verified of them is remembered.
func (z *Zone) proof() ([]*validate.RRset, error) {
	z.once.Do(func() {
		var all [][]*validate.RRset
		z.setErr = errProof // unless Sets returns
		if all, z.setErr = validate.Sets(z.Proof); z.setErr == nil {
			z.sets = all[0]
			if ds := find(z.sets, z.Name, dns.TypeDS); ds != nil {
				z.said = validate.UnverifiedDS(ds)
			}
		}
	})
	return z.sets, z.setErr
}

// find returns the RRset of a name and type, or nil.
func find(sets []*validate.RRset, name string, typ uint16) *validate.RRset {
	for _, s := range sets {
		if s.Type == typ && dnsname.Lower(s.Name) == name {
			return s
		}
	}
	return nil
}

// evidenceOf returns the DS records of a zone among what was said of it, or nil, and what is to be verified: these alone, or all.
func evidenceOf(said []*validate.RRset, zone string) (ds *validate.RRset, evidence []*validate.RRset) {
	if ds = find(said, zone, dns.TypeDS); ds != nil {
		return ds, []*validate.RRset{ds}
	}
	return nil, said
}

// signed reports whether there is a signature of one of the RRsets.
func signed(sets []*validate.RRset) bool {
	return slices.ContainsFunc(sets, func(s *validate.RRset) bool { return len(s.Sigs) > 0 })
}
