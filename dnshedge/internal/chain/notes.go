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
	maxLastBogus = 20             // answers that notes keep
	maxNoted     = 256            // zones of an hour that are logged
	lookEvery    = time.Minute    // at what the root's keys have told
	zoneEvery    = time.Hour      // a zone is logged
	clockEvery   = time.Hour      // the clock is logged
	keysEvery    = 24 * time.Hour // keys of the root are logged
)

// Notes are what Stats and Logger say of validation besides numbers. No lock is held while a logger is called.
type Notes struct {
	look atomic.Int64 // when the root is to be looked at, in nanoseconds since 1970

	mu     sync.Mutex              // guards the fields below
	last   []observe.RecursorBogus // the oldest first
	zones  map[string]time.Time    // when it was logged that they are bogus
	clock  time.Time               // when it was logged that the clock is off
	keys   time.Time               // when keys were logged that no anchor knows
	logged []uint16                // those
}

// Bogus takes an answer that is bogus. Who tells of it is what messages begin with.
func (n *Notes) Bogus(to *slog.Logger, who string, b observe.RecursorBogus) {
	zone := b.Zone
	if zone == "" {
		zone = b.Name
	}
	n.look.Store(0)
	n.mu.Lock()
	if len(n.last) >= maxLastBogus {
		n.last = slices.Delete(n.last, 0, 1+len(n.last)-maxLastBogus)
	}
	n.last = append(n.last, b)
	tell := to != nil && n.due(zone, b.Time)
	n.mu.Unlock()
	if tell {
		attrs := []slog.Attr{slog.String("zone", zone), slog.String("name", b.Name), slog.String("type", b.Type), slog.String("reason", b.Reason), slog.String("text", b.Text)}
		if b.Server.IsValid() {
			attrs = append(attrs, slog.String("server", b.Server.String()))
		}
		warn(to, who+": zone is bogus", attrs...)
	}
}

// warn logs a warning. A panic of the logger is dropped: a question may be answered on a goroutine where nobody could recover it.
func warn(to *slog.Logger, message string, attrs ...slog.Attr) {
	usercode.Run(func() { to.LogAttrs(context.Background(), slog.LevelWarn, message, attrs...) })
}

// due reports whether a zone is to be logged, which then counts as done.
func (n *Notes) due(zone string, now time.Time) bool {
	at, known := n.zones[zone]
	if known && now.Sub(at) < zoneEvery {
		return false
	}
	if !known && len(n.zones) >= maxNoted {
		for z, at := range n.zones {
			if now.Sub(at) >= zoneEvery {
				delete(n.zones, z)
			}
		}
		if len(n.zones) >= maxNoted {
			return false
		}
	}
	if n.zones == nil {
		n.zones = make(map[string]time.Time)
	}
	n.zones[zone] = now
	return true
}

// Root looks at what the root's keys have told, unless it has done so a short while ago.
func (n *Notes) Root(to *slog.Logger, who string, now time.Time, fill func(*observe.RecursorStats)) {
	next := n.look.Load()
	if to == nil || now.UnixNano() < next || !n.look.CompareAndSwap(next, now.Add(lookEvery).UnixNano()) {
		return
	}
	var s observe.RecursorStats
	fill(&s)
	n.mu.Lock()
	clock := s.ClockOff != 0 && (n.clock.IsZero() || now.Sub(n.clock) >= clockEvery)
	if clock {
		n.clock = now
	}
	keys := len(s.UnknownSEP) > 0 && (!slices.Equal(s.UnknownSEP, n.logged) || now.Sub(n.keys) >= keysEvery)
	if keys {
		n.keys, n.logged = now, s.UnknownSEP
	}
	n.mu.Unlock()
	if clock {
		is := "fast"
		if s.ClockOff < 0 {
			is = "slow"
		}
		warn(to, who+": the root's signatures are valid at another time than the clock's",
			slog.String("clock", is), slog.Duration("by", s.ClockOff.Abs()))
	}
	if keys {
		warn(to, who+": the root has keys that no anchor knows", slog.String("tags", fmt.Sprint(s.UnknownSEP)))
	}
}

// Fill sets what Stats says of answers that were bogus.
func (n *Notes) Fill(s *observe.RecursorStats) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.LastBogus = slices.Clone(n.last)
	slices.Reverse(s.LastBogus)
}
