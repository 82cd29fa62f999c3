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

// Limits and intervals of an EventLog.
const (
	maxLastBogus      = 20             // bogus answers that are kept
	maxLoggedZones    = 256            // zones in loggedZones
	rootCheckInterval = time.Minute    // time between two checks of the root's keys
	zoneLogInterval   = time.Hour      // time between two warnings about a zone
	clockLogInterval  = time.Hour      // time between two warnings about the clock
	keysLogInterval   = 24 * time.Hour // time between two warnings about the same unknown keys of the root
)

// An EventLog stores the last bogus answers for Stats, and logs warnings about validation. No lock is held during a
// call of the logger.
type EventLog struct {
	nextRootCheck atomic.Int64 // Unix ns

	mu          sync.Mutex              // guards the fields below
	lastBogus   []observe.RecursorBogus // oldest first
	loggedZones map[string]time.Time    // time of the last warning by zone
	clockLogged time.Time               // time of the last warning about the clock
	keysLogged  time.Time               // time of the last warning about loggedTags
	loggedTags  []uint16                // key tags of the root's keys without a trust anchor
}

// RecordBogus stores a bogus answer, and logs a warning about its zone unless one was logged within zoneLogInterval.
// The message begins with who. to may be nil.
func (n *EventLog) RecordBogus(to *slog.Logger, who string, b observe.RecursorBogus) {
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
	tell := to != nil && n.shouldLogZone(zone, b.Time)
	n.mu.Unlock()
	if tell {
		attrs := []slog.Attr{slog.String("zone", zone), slog.String("name", b.Name), slog.String("type", b.Type), slog.String("reason", b.Reason), slog.String("text", b.Text)}
		if b.Server.IsValid() {
			attrs = append(attrs, slog.String("server", b.Server.String()))
		}
		logWarning(to, who+": zone is bogus", attrs...)
	}
}

// logWarning logs a warning. It recovers a panic of the log handler, because the goroutine of a question may not
// recover it.
func logWarning(to *slog.Logger, message string, attrs ...slog.Attr) {
	usercode.RunGuarded(func() { to.LogAttrs(context.Background(), slog.LevelWarn, message, attrs...) })
}

// shouldLogZone reports whether a warning about a zone is due. If so, it records the warning as logged. The caller
// holds mu.
func (n *EventLog) shouldLogZone(zone string, now time.Time) bool {
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

// CheckRoot logs warnings if the root's keys show that the clock is wrong or that trust anchors are missing. It does so
// at most once in rootCheckInterval. fill sets the statistics with these observations. The messages begin with who. to
// may be nil.
func (n *EventLog) CheckRoot(to *slog.Logger, who string, now time.Time, fill func(*observe.RecursorStats)) {
	next := n.nextRootCheck.Load()
	if to == nil || now.UnixNano() < next || !n.nextRootCheck.CompareAndSwap(next, now.Add(rootCheckInterval).UnixNano()) {
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
		logWarning(to, who+": the root's signatures are valid at another time than the clock's",
			slog.String("clock", is), slog.Duration("by", s.ClockOff.Abs()))
	}
	if keys {
		logWarning(to, who+": the root has keys that no anchor knows", slog.String("tags", fmt.Sprint(s.UnknownSEP)))
	}
}

// FillStats sets the last bogus answers in s, newest first.
func (n *EventLog) FillStats(s *observe.RecursorStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.LastBogus = slices.Clone(n.lastBogus)
	slices.Reverse(s.LastBogus)
}
