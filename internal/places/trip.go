package places

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// A Trip is one call's way to places. The goroutine of the call begins and ends it. Hedges are added to it one at a
// time, before they start, and each attempt uses its own elements. A call with a nil Trip has no choice of places: all its attempts go
// where it was made for.
type Trip struct {
	set     *Set
	health  *Health
	fit     Mask
	had     Mask
	primary int
	failed  atomic.Bool // the primary has
	rivalry
	plan
	at    [1 + race.MaxHedges]uint8
	ctx   context.Context // the caller's
	began time.Time
	since [1 + race.MaxHedges]atomic.Int64 // of the attempts' starts, in ns since began
}

// rivalry is with the place that has the call as well, from the beginning.
type rivalry struct {
	rival  int           // that place; -1: none
	given  time.Duration // if it has not answered after that, it is to blame
	rivals int           // the attempt that is sent there; 0: none was
	lost   atomic.Bool   // it has failed
}

// plan is what decides where hedges go that start later.
type plan struct {
	usual   time.Duration // what calls take that go where this one goes; 0: that is not known
	planned int           // hedges that can become due
	hedges  int           // that did
	home    bool          // the first of them went where the primary goes
}

// Begin returns the trip of a call that those places can have, of which there is at least one.
func (s *Set) Begin(ctx context.Context, h *Health, fit Mask) *Trip {
	t := &Trip{set: s, health: h, fit: fit, ctx: ctx, began: time.Now(), primary: h.primary(fit), rivalry: rivalry{rival: -1}}
	t.at[0], t.had = uint8(t.primary), Mask(0).with(t.primary)
	return t
}

// Challenge may have the call sent to another place as well, at once. Usual is what calls take that go where it goes.
func (t *Trip) Challenge(usual time.Duration) {
	t.usual, t.rival = usual, t.health.rival(t.fit, t.primary, usual)
	if t.rival >= 0 {
		t.given = t.health.expected(t.rival)
	}
}

// Planned says how many hedges can become due, but for one that starts with the primary.
func (t *Trip) Planned(hedges int) {
	if t != nil {
		t.planned = hedges
	}
}

// Primary returns where the primary goes.
func (t *Trip) Primary() int { return t.primary }

// Place returns where attempt n goes.
func (t *Trip) Place(n int) int {
	if t == nil {
		return 0
	}
	return int(t.at[n])
}

// Elsewhere reports whether attempt n goes to another place than the primary.
func (t *Trip) Elsewhere(n int) bool { return t != nil && t.Place(n) != t.primary }

// Rival reports whether the call is sent to another place at once.
func (t *Trip) Rival() bool { return t != nil && t.rival >= 0 }

// Next returns where the next hedge goes, and what it costs. First says that it is the one that starts with the primary. If the next place is
// far away, and where the primary goes is well, the first hedge goes there too, as long as another one can follow.
func (t *Trip) Next(first bool) (place, cost int) {
	switch {
	case first:
		place = t.rival
	case t.hedges == 0 && t.planned > 1 && t.health.well(t.primary) && t.health.far(t.fit, t.primary, t.usual):
		place = t.primary
	default:
		if t.home {
			t.health.doubted(t.primary)
		}
		place = t.health.hedge(t.fit, t.had, t.primary)
	}
	return place, t.set.all[place].cost
}

// Usually returns what the first hedge costs if no place is out and as many hedges can follow.
func (t *Trip) Usually(hedges int) int {
	if hedges > 1 && t.health.far(t.fit, t.primary, t.usual) {
		return t.set.all[t.primary].cost
	}
	for i := range t.set.all {
		if t.fit.Has(i) && i != t.primary {
			return t.set.all[i].cost
		}
	}
	return 1
}

// Add says that attempt n, a hedge, goes to a place, and whether it starts with the primary.
func (t *Trip) Add(n, place int, first bool) {
	t.at[n], t.had = uint8(place), t.had.with(place)
	if first {
		t.rivals = n
		t.health.besides(place)
	} else {
		t.home = t.hedges == 0 && place == t.primary
		t.hedges++
		t.health.tried(place)
	}
	t.health.hedged(place)
}

// Cost returns what attempt n costs.
func (t *Trip) Cost(n int) int { return t.set.all[t.at[n]].cost }

// Start makes r the request of attempt n: to its place, and prepared for it. The body of r must have been read, if it has one. The
// header of that name, in which a hedge says that it is one, goes there as well. An error is that of Prepare.
func (t *Trip) Start(r *http.Request, n int, attemptHeader string) error {
	t.since[n].Store(int64(time.Since(t.began)))
	if t.at[n] == 0 {
		return nil
	}
	p := &t.set.all[t.at[n]]
	if n == 0 {
		attemptHeader = "" // it would be the caller's own
	}
	p.move(r, &t.set.all[0], attemptHeader)
	if p.prepare == nil {
		return nil
	}
	return p.ready(r)
}

// ready has r prepared for p. If that fails, in whatever way, it closes the body of r.
func (p *place) ready(r *http.Request) (err error) {
	fresh := r.GetBody
	if !httpattempt.HasBody(r) {
		fresh, r.GetBody = nil, nil // which would make none again, also where Prepare sets one
	}
	if fresh != nil {
		own := func() (io.ReadCloser, error) {
			b, err := fresh()
			return &original{b}, err
		}
		r.GetBody = own
		r.Body, _ = own()
	}
	returned := false
	defer func() {
		if (!returned || err != nil) && r.Body != nil {
			_ = r.Body.Close()
		}
	}()
	err = p.prepare(r)
	switch returned = true; {
	case err != nil:
		return fmt.Errorf("hedge: place %s: Prepare: %w", p.given, err)
	case r.URL == nil || r.Header == nil:
		return fmt.Errorf("hedge: place %s: Prepare left no URL or no Header", p.given)
	}
	return restore(r, fresh)
}

// original is a body that Prepare was given.
type original struct{ io.ReadCloser }

// restore gives r the body back that Prepare has read, unless it has set another one. Fresh makes that body; nil: there was none.
func restore(r *http.Request, fresh func() (io.ReadCloser, error)) (err error) {
	if fresh == nil {
		return nil
	}
	_, same := r.Body.(*original)
	if same {
		r.Body, err = fresh()
		r.GetBody = fresh
		return err
	}
	if r.GetBody != nil { // of another body than the one to send?
		b, err := r.GetBody()
		if _, old := b.(*original); old || err != nil {
			r.GetBody = nil
		} else if b != nil {
			_ = b.Close()
		}
	}
	return nil
}

// ErrLeaves is the error of an attempt whose place answers with a redirect that cannot be led home.
var ErrLeaves = errors.New("redirects to a host that is not among the places, or with a secret in the URL")

// Answered makes resp, the answer to sent, fit for the caller, who has asked the first place: a cookie of another host would be
// that place's, and a redirect leads to the first place if it stays at any. If it leads to another host, Answered closes
// the body and returns an error.
func (t *Trip) Answered(resp *http.Response, sent *http.Request, n int) error {
	p := &t.set.all[t.at[n]]
	if t.at[n] == 0 {
		return nil
	}
	if resp.Request == sent {
		shown := sent.WithContext(t.ctx)
		shown.Body, shown.GetBody = nil, nil
		resp.Request = shown
	}
	header := resp.Header
	if _, has := header["Set-Cookie"]; has {
		header = header.Clone()
		delete(header, "Set-Cookie")
	}
	if places := header["Location"]; len(places) > 0 && places[0] != "" && resp.StatusCode >= 300 && resp.StatusCode <= 399 {
		to, err := sent.URL.Parse(places[0])
		if err == nil {
			to, err = t.set.home(to, t.Place(n))
		}
		if err != nil {
			if resp.Body != nil {
				_ = resp.Body.Close()
			}
			return fmt.Errorf("hedge: place %s %w", p.given, ErrLeaves)
		}
		header = header.Clone()
		header.Set("Location", to.String())
	}
	resp.Header = header
	return nil
}

// home returns what to, a URL at one of the places, is at the first place. It is at the place that says so, if it is at several. A secret
// of another host does not go there.
func (s *Set) home(to *url.URL, from int) (*url.URL, error) {
	for k := -1; k < len(s.all); k++ {
		i := k
		if k < 0 {
			i = from
		}
		p := &s.all[i]
		if to.Scheme != p.scheme || httpattempt.HostName(to.Scheme, to.Host) != p.host || to.User != nil {
			continue
		}
		rest, ok := p.below(to.EscapedPath())
		path, err := url.PathUnescape(s.all[0].path + rest)
		if !ok || err != nil || climbs(rest) {
			continue
		}
		at := *to
		if i > 0 {
			var stays string
			if at.RawQuery, stays = p.query(to.RawQuery); stays != "" || hasParameters(rest) {
				continue
			}
		}
		at.Scheme, at.Host, at.Path, at.RawPath = s.all[0].scheme, s.all[0].authority, path, s.all[0].path+rest
		return &at, nil
	}
	return nil, ErrLeaves
}

// Ended learns how attempt n ended: with an answer, by itself without one, or in a way that is not its place's: it was cancelled, or its
// server does not want hedges now.
func (t *Trip) Ended(n int, answered, excused bool) {
	if t == nil {
		return
	}
	i, took := t.Place(n), time.Since(t.began)-time.Duration(t.since[n].Load())
	switch {
	case answered:
		t.health.answered(i, took)
		if n > 0 && n != t.rivals {
			t.health.outcome(i, true)
		}
	case excused:
		t.health.silent(i, took)
	default:
		t.health.outcome(i, false)
		switch n {
		case 0:
			t.failed.Store(true)
		case t.rivals:
			t.lost.Store(true)
		}
	}
}

// An End is how a call ended.
type End struct {
	Winner int  // the attempt that answered; -1: none
	Denied bool // a hedge was due and was not sent
	Late   bool // the caller's deadline has passed
	Took   time.Duration
	Tail   time.Duration // the 99th percentile of calls that go where it went; 0: that is not known
}

// late reports whether the caller's deadline has passed though calls take less time as a rule: all but one in a hundred, or if more have no
// answer, most of them by far.
func (t *Trip) late(e End) bool {
	return e.Late && (e.Took >= e.Tail || t.usual > 0 && e.Took >= patient*t.usual)
}

// End learns from the end of the call.
func (t *Trip) End(e End) {
	if t == nil {
		return
	}
	switch {
	case e.Winner == 0 && !e.Denied:
		t.health.outcome(t.primary, true)
	case t.failed.Load(): // which is known
	case e.Winner > 0 && e.Winner != t.rivals && t.Elsewhere(e.Winner), e.Winner < 0 && t.late(e):
		t.health.overtaken(t.primary)
	case e.Winner > 0 && !t.Elsewhere(e.Winner):
		t.health.outrun(t.fit, t.primary, e.Tail)
	}
	if t.rivals > 0 && (e.Winner == 0 && !t.lost.Load() || e.Winner == t.rivals && !t.failed.Load()) {
		t.health.duel(t.primary, t.rival, e.Winner == t.rivals, e.Took >= t.given)
	}
}
