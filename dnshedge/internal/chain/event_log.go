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

const (
	maxLastBogus      = 20             // answers that notes keep
	maxLoggedZones    = 256            // zones of an hour that are logged
	rootCheckInterval = time.Minute    // at what the root's keys have told
	zoneLogInterval   = time.Hour      // a zone is logged
	clockLogInterval  = time.Hour      // the clock is logged
	keysLogInterval   = 24 * time.Hour // keys of the root are logged
)

// EventLog are what Stats and Logger say of validation besides numbers. No lock is held while a logger is called.
type EventLog struct {
	nextRootCheck atomic.Int64 // when the root is to be looked at, in nanoseconds since 1970

	mu          sync.Mutex              // guards the fields below
	lastBogus   []observe.RecursorBogus // the oldest first
	loggedZones map[string]time.Time    // when it was logged that they are bogus
	clockLogged time.Time               // when it was logged that the clock is off
	keysLogged  time.Time               // when keys were logged that no anchor knows
	loggedTags  []uint16                // those
}

// Bogus takes an answer that is bogus. Who tells of it is what messages begin with.
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

// logWarning logs a warning. A panic of the logger is dropped: a question may be answered on a goroutine where nobody could recover it.
func logWarning(to *slog.Logger, message string, attrs ...slog.Attr) {
	usercode.Run(func() { to.LogAttrs(context.Background(), slog.LevelWarn, message, attrs...) })
}

// shouldLogZone reports whether a zone is to be logged, which then counts as done.
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

// CheckRoot looks at what the root's keys have told, unless it has done so a short while ago.
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

// Fill sets what Stats says of answers that were bogus.
func (n *EventLog) Fill(s *observe.RecursorStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.LastBogus = slices.Clone(n.lastBogus)
	slices.Reverse(s.LastBogus)
}
