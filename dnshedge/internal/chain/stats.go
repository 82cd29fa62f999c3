package chain

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// Counters counts answers, responses and queries of a Validator, for its statistics.
type Counters struct {
	Secure, Insecure atomic.Int64 // answers with this status
	KeyQueries       atomic.Int64 // DNSKEY queries
	Rejected         atomic.Int64 // responses that CheckResponse or a key lookup has rejected
	Synthesized      atomic.Int64 // answers synthesized from cached proofs
	Verifications    atomic.Int64 // units of verification, see validate.Policy
	bogusByEDE       sync.Map     // by EDE code: number (*atomic.Int64) of bogus answers
}

// RootAnchors returns the key tags of the root's trust anchors. It returns nil if the root has no trust anchor.
func (c *Validator) RootAnchors() []uint16 {
	if a := c.anchors["."]; a != nil && a.ds != nil {
		return a.ds.KeyTags()
	}
	return nil
}

// CountZones returns the number of zones in the key cache, including expired entries.
func (c *Validator) CountZones() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.keyCache)
}

// FillStats sets the counters, the last bogus answers (newest first) and the observations of root keys in s. It adds the
// memory of the Validator's caches to s.Bytes, in bytes.
func (c *Validator) FillStats(s *observe.RecursorStats) {
	n := &c.Counts
	s.Secure, s.Insecure, s.Bogus = n.Secure.Load(), n.Insecure.Load(), make(map[uint16]int64)
	n.bogusByEDE.Range(func(ede, n any) bool {
		s.Bogus[ede.(uint16)] = n.(*atomic.Int64).Load()
		return true
	})
	s.Verifications, s.KeyQueries, s.PassedOver = n.Verifications.Load(), n.KeyQueries.Load(), n.Rejected.Load()
	s.Synthesized = n.Synthesized.Load()
	c.mu.Lock()
	s.Bytes += c.bytes
	c.mu.Unlock()
	s.Bytes += c.aggressive.MemoryBytes()
	c.log.mu.Lock()
	s.LastBogus = slices.Clone(c.log.lastBogus)
	c.log.mu.Unlock()
	slices.Reverse(s.LastBogus)
	r := &c.rootStatus
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tag := range c.RootAnchors() {
		s.Anchors = append(s.Anchors, observe.RecursorAnchor{Tag: tag, Present: slices.Contains(r.anchoredTags, tag), Signs: slices.Contains(r.signingTags, tag)})
	}
	s.UnknownSEP, s.ClockOff = slices.Clone(r.unknownTags), r.clockOff
}

// A rootKeyStatus records observations of the root's keys for the statistics: which of them have a trust anchor, and
// whether this machine's clock is right. The clock is right if it is within the validity period of the root's
// signatures. A rootKeyStatus is safe for concurrent use.
type rootKeyStatus struct {
	mu           sync.Mutex    // guards the following fields
	unknownTags  []uint16      // key tags of SEP keys without a trust anchor
	anchoredTags []uint16      // key tags of SEP keys with a trust anchor
	signingTags  []uint16      // key tags of the keys with a trust anchor that sign the DNSKEY RRset
	clockOff     time.Duration // distance of the clock from the validity period of the root's signatures; negative if the clock is slow, 0 if it is right
}

// observeKeys updates the status from set, the DNSKEY RRset of the root: which trust anchors are in it and have signed
// it. d are the trust anchors, and err is the error of VerifyDNSKEY. If err is not nil, only clockOff is set.
func (s *rootKeyStatus) observeKeys(set *validate.RRset, d *validate.DSSet, err error, now time.Time, p validate.Policy) {
	signers, off := d.SigningKeyTags(p, set, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clockOff = off; err != nil {
		return
	}
	s.anchoredTags, s.unknownTags, s.signingTags = nil, nil, signers
	for _, rr := range set.Records {
		k, ok := rr.(*dns.DNSKEY)
		if !ok || k.Flags&dns.SEP == 0 || k.Flags&dns.REVOKE != 0 {
			continue
		}
		if tag := k.KeyTag(); slices.Contains(d.KeyTags(), tag) {
			s.anchoredTags = append(s.anchoredTags, tag)
		} else {
			s.unknownTags = append(s.unknownTags, tag)
		}
	}
}

// Limits and intervals of a validationLog.
const (
	maxLastBogus      = 20             // bogus answers in lastBogus
	maxLoggedZones    = 256            // zones in loggedZones
	rootCheckInterval = time.Minute    // minimum time between two checks of the root's keys
	zoneLogInterval   = time.Hour      // minimum time between two warnings about the same zone
	clockLogInterval  = time.Hour      // minimum time between two warnings about a wrong clock
	keysLogInterval   = 24 * time.Hour // minimum time between two warnings about the same root keys
)

// A validationLog stores the last bogus answers for the statistics, and which warnings about validation were logged. The
// zero value is empty. It is safe for concurrent use. No lock is held while a warning is logged.
type validationLog struct {
	nextRootCheck atomic.Int64 // earliest time of the next check of the root's keys, in nanoseconds since 1970; 0 means now

	mu          sync.Mutex              // guards the following fields
	lastBogus   []observe.RecursorBogus // oldest first
	loggedZones map[string]time.Time    // by zone name: time of the last warning
	clockLogged time.Time               // time of the last warning about a wrong clock
	keysLogged  time.Time               // time of the last warning about the keys in loggedTags
	loggedTags  []uint16                // key tags in the last warning about root keys without a trust anchor
}

// RecordBogus counts and stores the bogus answer b, whose extended error has the info code ede, and logs a warning about
// its zone. It sets the Time and the Reason of b. The warning is omitted if the last warning about the zone is more
// recent than zoneLogInterval.
func (c *Validator) RecordBogus(ede uint16, b observe.RecursorBogus) {
	count, ok := c.Counts.bogusByEDE.Load(ede)
	if !ok {
		count, _ = c.Counts.bogusByEDE.LoadOrStore(ede, new(atomic.Int64))
	}
	count.(*atomic.Int64).Add(1)
	b.Time, b.Reason = time.Now(), observe.ExtendedError(ede)
	zone := cmp.Or(b.Zone, b.Name)
	l := &c.log
	l.nextRootCheck.Store(0)
	l.mu.Lock()
	if len(l.lastBogus) >= maxLastBogus {
		l.lastBogus = slices.Delete(l.lastBogus, 0, 1+len(l.lastBogus)-maxLastBogus)
	}
	l.lastBogus = append(l.lastBogus, b)
	tell := c.conf.Logger != nil && l.allowZoneWarning(zone, b.Time)
	l.mu.Unlock()
	if tell {
		attrs := []slog.Attr{slog.String("zone", zone), slog.String("name", b.Name), slog.String("type", b.Type), slog.String("reason", b.Reason), slog.String("text", b.Text)}
		if b.Server.IsValid() {
			attrs = append(attrs, slog.String("server", b.Server.String()))
		}
		c.logWarning("zone is bogus", attrs...)
	}
}

// logWarning logs a warning with a message and attributes. Config.Logger must not be nil. If the log handler panics, it
// recovers the panic, so that the question is still answered.
func (c *Validator) logWarning(message string, attrs ...slog.Attr) {
	usercode.RunGuarded(func() {
		c.conf.Logger.LogAttrs(context.Background(), slog.LevelWarn, c.conf.LogSource+": "+message, attrs...)
	})
}

// allowZoneWarning returns true if a warning about a zone may be logged, because the last one is older than
// zoneLogInterval. It then records now as the time of the warning, so that the caller must log it. It also returns
// false if maxLoggedZones zones have recent warnings. The caller must hold mu.
func (l *validationLog) allowZoneWarning(zone string, now time.Time) bool {
	at, known := l.loggedZones[zone]
	if known && now.Sub(at) < zoneLogInterval {
		return false
	}
	if !known && len(l.loggedZones) >= maxLoggedZones {
		for z, at := range l.loggedZones {
			if now.Sub(at) >= zoneLogInterval {
				delete(l.loggedZones, z)
			}
		}
		if len(l.loggedZones) >= maxLoggedZones {
			return false
		}
	}
	if l.loggedZones == nil {
		l.loggedZones = make(map[string]time.Time)
	}
	l.loggedZones[zone] = now
	return true
}

// LogRootWarnings logs a warning if the root's signatures show that the clock is wrong, and a warning if root keys have no
// trust anchor. It does nothing if it has checked within rootCheckInterval. now is the present time.
func (c *Validator) LogRootWarnings(now time.Time) {
	l, s := &c.log, &c.rootStatus
	next := l.nextRootCheck.Load()
	if c.conf.Logger == nil || now.UnixNano() < next || !l.nextRootCheck.CompareAndSwap(next, now.Add(rootCheckInterval).UnixNano()) {
		return
	}
	s.mu.Lock()
	clockOff, unknownTags := s.clockOff, s.unknownTags
	s.mu.Unlock()
	l.mu.Lock()
	clock := clockOff != 0 && (l.clockLogged.IsZero() || now.Sub(l.clockLogged) >= clockLogInterval)
	if clock {
		l.clockLogged = now
	}
	keys := len(unknownTags) > 0 && (!slices.Equal(unknownTags, l.loggedTags) || now.Sub(l.keysLogged) >= keysLogInterval)
	if keys {
		l.keysLogged, l.loggedTags = now, unknownTags
	}
	l.mu.Unlock()
	if clock {
		is := "fast"
		if clockOff < 0 {
			is = "slow"
		}
		c.logWarning("the root's signatures are valid at another time than the clock's", slog.String("clock", is), slog.Duration("by", clockOff.Abs()))
	}
	if keys {
		c.logWarning("the root has keys that no anchor knows", slog.String("tags", fmt.Sprint(unknownTags)))
	}
}
