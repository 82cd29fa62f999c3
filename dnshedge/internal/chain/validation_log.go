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

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/observe"
)

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
	n := &c.log
	n.nextRootCheck.Store(0)
	n.mu.Lock()
	if len(n.lastBogus) >= maxLastBogus {
		n.lastBogus = slices.Delete(n.lastBogus, 0, 1+len(n.lastBogus)-maxLastBogus)
	}
	n.lastBogus = append(n.lastBogus, b)
	tell := c.conf.Logger != nil && n.shouldLogZone(zone, b.Time)
	n.mu.Unlock()
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

// shouldLogZone reports whether a warning about a zone should be logged, because the last one is older than
// zoneLogInterval. If it returns true, it has recorded the time now as that of the warning. The caller must hold mu.
func (n *validationLog) shouldLogZone(zone string, now time.Time) bool {
	at, known := n.loggedZones[zone]
	if known && now.Sub(at) < zoneLogInterval {
		return false
	}
	if !known && len(n.loggedZones) >= maxLoggedZones {
		for z, at := range n.loggedZones {
			if now.Sub(at) >= zoneLogInterval {
				delete(n.loggedZones, z)
			}
		}
		if len(n.loggedZones) >= maxLoggedZones {
			return false
		}
	}
	if n.loggedZones == nil {
		n.loggedZones = make(map[string]time.Time)
	}
	n.loggedZones[zone] = now
	return true
}

// LogRootWarnings logs a warning if the root's signatures show that the clock is wrong, and a warning if root keys have no
// trust anchor. It does nothing if it has checked within rootCheckInterval. now is the present time.
func (c *Validator) LogRootWarnings(now time.Time) {
	n, r := &c.log, &c.rootStatus
	next := n.nextRootCheck.Load()
	if c.conf.Logger == nil || now.UnixNano() < next || !n.nextRootCheck.CompareAndSwap(next, now.Add(rootCheckInterval).UnixNano()) {
		return
	}
	r.mu.Lock()
	clockOff, unknownTags := r.clockOff, r.unknownTags
	r.mu.Unlock()
	n.mu.Lock()
	clock := clockOff != 0 && (n.clockLogged.IsZero() || now.Sub(n.clockLogged) >= clockLogInterval)
	if clock {
		n.clockLogged = now
	}
	keys := len(unknownTags) > 0 && (!slices.Equal(unknownTags, n.loggedTags) || now.Sub(n.keysLogged) >= keysLogInterval)
	if keys {
		n.keysLogged, n.loggedTags = now, unknownTags
	}
	n.mu.Unlock()
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
