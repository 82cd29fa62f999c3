package chain

import (
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

// Limits and intervals of an ValidationLog.
const (
	maxLastBogus      = 20             // bogus answers in lastBogus
	maxLoggedZones    = 256            // zones in loggedZones
	rootCheckInterval = time.Minute    // minimum time between two checks of the root's keys
	zoneLogInterval   = time.Hour      // minimum time between two warnings about the same zone
	clockLogInterval  = time.Hour      // minimum time between two warnings about a wrong clock
	keysLogInterval   = 24 * time.Hour // minimum time between two warnings about the same root keys
)

// A ValidationLog stores the last bogus answers for the statistics, and logs warnings about validation. The zero value is
// empty. It is safe for concurrent use, and holds no lock while it calls the logger.
type ValidationLog struct {
	nextRootCheck atomic.Int64 // earliest time of the next check of the root's keys, in nanoseconds since 1970; 0 means now

	mu          sync.Mutex              // guards the following fields
	lastBogus   []observe.RecursorBogus // oldest first
	loggedZones map[string]time.Time    // by zone name: time of the last warning
	clockLogged time.Time               // time of the last warning about a wrong clock
	keysLogged  time.Time               // time of the last warning about the keys in loggedTags
	loggedTags  []uint16                // key tags in the last warning about root keys without a trust anchor
}

// RecordBogus stores the bogus answer b, and logs a warning about its zone. The warning is omitted if the last warning
// about the zone is more recent than zoneLogInterval.
//
// source is the name of the package, with which the message begins. If logger is nil, nothing is logged.
func (n *ValidationLog) RecordBogus(logger *slog.Logger, source string, b observe.RecursorBogus) {
	zone := b.Zone
	if zone == "" {
		zone = b.Name
	}
	n.nextRootCheck.Store(0)
	n.mu.Lock()
	if len(n.lastBogus) >= maxLastBogus {
		n.lastBogus = slices.Delete(n.lastBogus, 0, 1+len(n.lastBogus)-maxLastBogus)
	}
	n.lastBogus = append(n.lastBogus, b)
	tell := logger != nil && n.shouldLogZone(zone, b.Time)
	n.mu.Unlock()
	if tell {
		attrs := []slog.Attr{slog.String("zone", zone), slog.String("name", b.Name), slog.String("type", b.Type), slog.String("reason", b.Reason), slog.String("text", b.Text)}
		if b.Server.IsValid() {
			attrs = append(attrs, slog.String("server", b.Server.String()))
		}
		logWarning(logger, source+": zone is bogus", attrs...)
	}
}

// logWarning logs a warning with a message and attributes. If the log handler panics, it recovers the panic, so that
// the question is still answered.
func logWarning(logger *slog.Logger, message string, attrs ...slog.Attr) {
	usercode.RunGuarded(func() { logger.LogAttrs(context.Background(), slog.LevelWarn, message, attrs...) })
}

// shouldLogZone reports whether a warning about a zone should be logged, because the last one is older than
// zoneLogInterval. If it returns true, it has recorded the time now as that of the warning. The caller must hold mu.
func (n *ValidationLog) shouldLogZone(zone string, now time.Time) bool {
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
// trust anchor. It does nothing if it has checked within rootCheckInterval.
//
// It calls fill, which must set the fields ClockOff and UnknownSEP. source is the name of the package, with which the messages begin. If logger is
// nil, nothing is logged.
func (n *ValidationLog) LogRootWarnings(logger *slog.Logger, source string, now time.Time, fill func(*observe.RecursorStats)) {
	next := n.nextRootCheck.Load()
	if logger == nil || now.UnixNano() < next || !n.nextRootCheck.CompareAndSwap(next, now.Add(rootCheckInterval).UnixNano()) {
		return
	}
	var s observe.RecursorStats
	fill(&s)
	n.mu.Lock()
	clock := s.ClockOff != 0 && (n.clockLogged.IsZero() || now.Sub(n.clockLogged) >= clockLogInterval)
	if clock {
		n.clockLogged = now
	}
	keys := len(s.UnknownSEP) > 0 && (!slices.Equal(s.UnknownSEP, n.loggedTags) || now.Sub(n.keysLogged) >= keysLogInterval)
	if keys {
		n.keysLogged, n.loggedTags = now, s.UnknownSEP
	}
	n.mu.Unlock()
	if clock {
		is := "fast"
		if s.ClockOff < 0 {
			is = "slow"
		}
		logWarning(logger, source+": the root's signatures are valid at another time than the clock's",
			slog.String("clock", is), slog.Duration("by", s.ClockOff.Abs()))
	}
	if keys {
		logWarning(logger, source+": the root has keys that no anchor knows", slog.String("tags", fmt.Sprint(s.UnknownSEP)))
	}
}

// FillStats sets s.LastBogus to the last bogus answers, newest first.
func (n *ValidationLog) FillStats(s *observe.RecursorStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.LastBogus = slices.Clone(n.lastBogus)
	slices.Reverse(s.LastBogus)
}
