package endpoint

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

// A Trip is one call's way to endpoints. The goroutine of the call begins and ends it. Hedges are added to it one at a
// time, before they start, and each attempt uses its own elements. A call with a nil Trip has no choice of endpoints: all its attempts go
// where it was made for.
type Trip struct {
	set     *Set
	health  *Health
	fit     Mask
	had     Mask
	primary int
	broken  atomic.Bool // the primary has failed
	probe
	plan
	at    [1 + race.MaxHedges]uint8
	ctx   context.Context // the caller's
	began time.Time
	since [1 + race.MaxHedges]atomic.Int64 // of the attempts' starts, in ns since began
}

// A probe is an attempt that starts with the primary, at an endpoint that is ejected or that nothing is known of.
type probe struct {
	probes  int           // the endpoint; -1: none
	given   time.Duration // the time after which a probe without an answer is a bad outcome; 0: it never is
	attempt int           // the number of the attempt; 0: it was not sent
	failed  atomic.Bool   // the probe has failed
}

// plan decides where the hedges go that start after the primary.
type plan struct {
	usual  time.Duration // latency of calls that go to the endpoint of the primary; 0: that is not known
	hedge  int           // the attempt that is the first of them; 0: none was added
	stayed bool          // it went to the endpoint of the primary
}

// Begin returns the trip of a call that those endpoints can have, of which there is at least one.
func (s *Set) Begin(ctx context.Context, h *Health, fit Mask) *Trip {
	t := &Trip{set: s, health: h, fit: fit, ctx: ctx, began: time.Now(), primary: h.primary(fit), probe: probe{probes: -1}}
	t.at[0], t.had = uint8(t.primary), Mask(0).with(t.primary)
	return t
}

// ChooseProbe decides whether the call has a probe. Usual is the usual latency of calls that go to the endpoint of the primary.
func (t *Trip) ChooseProbe(usual time.Duration) {
	t.usual = usual
	t.probes, t.given = t.health.probe(t.fit, t.primary, usual)
}

// Primary returns where the primary goes.
func (t *Trip) Primary() int { return t.primary }

// Endpoint returns where attempt n goes.
func (t *Trip) Endpoint(n int) int {
	if t == nil {
		return 0
	}
	return int(t.at[n])
}

// Elsewhere reports whether attempt n goes to another endpoint than the primary.
func (t *Trip) Elsewhere(n int) bool { return t != nil && t.Endpoint(n) != t.primary }

// Probes reports whether the call has a probe.
func (t *Trip) Probes() bool { return t != nil && t.probes >= 0 }

// Next returns the endpoint of the next hedge and its cost. First says that the hedge is the probe, which starts with the primary. The first hedge stays at
// the endpoint of the primary if that is well and the next endpoint takes longer.
func (t *Trip) Next(first bool) (endpoint, cost int) {
	switch {
	case first:
		endpoint = t.probes
	case t.health.far(t.fit, t.primary, t.usual) && t.staysWell():
		endpoint = t.primary
	default:
		if t.stayed {
			t.health.doubted(t.primary)
		}
		endpoint = t.health.hedge(t.fit, t.had, t.primary)
	}
	return endpoint, t.set.all[endpoint].cost
}

// staysWell reports whether another attempt at the endpoint of the primary may help: the first hedge if the last outcome there is good, and the next
// ones if another call has got a prompt answer since this call began.
func (t *Trip) staysWell() bool {
	if t.stayed {
		return t.health.isPromptSince(t.primary, t.began)
	}
	return t.hedge == 0 && t.health.well(t.primary)
}

// Usually returns the cost of the first hedge if no endpoint is ejected.
func (t *Trip) Usually() int {
	if t.health.far(t.fit, t.primary, t.usual) {
		return t.set.all[t.primary].cost
	}
	for i := range t.set.all {
		if t.fit.Has(i) && i != t.primary {
			return t.set.all[i].cost
		}
	}
	return 1
}

// Add says that attempt n, a hedge, goes to an endpoint, and whether it starts with the primary.
func (t *Trip) Add(n, endpoint int, first bool) {
	t.at[n], t.had = uint8(endpoint), t.had.with(endpoint)
	if first {
		t.attempt = n
		t.health.probed(endpoint)
	} else {
		if t.hedge == 0 {
			t.hedge, t.stayed = n, endpoint == t.primary
		}
		t.health.tried(endpoint)
	}
	t.health.hedged(endpoint)
}

// Cost returns what attempt n costs.
func (t *Trip) Cost(n int) int { return t.set.all[t.at[n]].cost }

// Start makes r the request of attempt n: to its endpoint, and prepared for it. The body of r must have been read, if it has one. The
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
func (p *endpoint) ready(r *http.Request) (err error) {
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
		return fmt.Errorf("hedge: endpoint %s: Prepare: %w", p.given, err)
	case r.URL == nil || r.Header == nil:
		return fmt.Errorf("hedge: endpoint %s: Prepare left no URL or no Header", p.given)
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

// ErrLeaves is the error of an attempt whose endpoint answers with a redirect that cannot be led home.
var ErrLeaves = errors.New("redirects to a host that is not among the endpoints, or with a secret in the URL")

// Answered makes resp, the answer to sent, fit for the caller, who has asked the first endpoint: a cookie of another host would be
// that endpoint's, and a redirect leads to the first endpoint if it stays at any. If it leads to another host, Answered closes
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
	if endpoints := header["Location"]; len(endpoints) > 0 && endpoints[0] != "" && resp.StatusCode >= 300 && resp.StatusCode <= 399 {
		to, err := sent.URL.Parse(endpoints[0])
		if err == nil {
			to, err = t.set.home(to, t.Endpoint(n))
		}
		if err != nil {
			if resp.Body != nil {
				_ = resp.Body.Close()
			}
			return fmt.Errorf("hedge: endpoint %s %w", p.given, ErrLeaves)
		}
		header = header.Clone()
		header.Set("Location", to.String())
	}
	resp.Header = header
	return nil
}

// home returns what to, a URL at one of the endpoints, is at the first endpoint. It is at the endpoint that says so, if it is at several. A secret
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

// Ended learns how attempt n ended: with an answer, by itself without one, or in a way that is not its endpoint's: it was cancelled, or its
// server does not want hedges now.
func (t *Trip) Ended(n int, answered, excused bool) {
	if t == nil {
		return
	}
	i, took := t.Endpoint(n), time.Since(t.began)-time.Duration(t.since[n].Load())
	switch {
	case answered:
		t.health.answered(t.fit, i, took)
		if n > 0 && n != t.attempt {
			t.health.outcome(i, true)
		}
	case excused:
		t.health.silent(i, took)
	default:
		t.health.outcome(i, false)
		switch n {
		case 0:
			t.broken.Store(true)
		case t.attempt:
			t.failed.Store(true)
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

// pastDeadline reports whether the caller's deadline has passed though calls take less time as a rule: all but one in a hundred, or if more have no
// answer, most of them by far.
func (t *Trip) pastDeadline(e End) bool {
	return e.Late && (e.Took >= e.Tail || t.usual > 0 && e.Took >= patient*t.usual)
}

// End learns from the end of the call.
func (t *Trip) End(e End) {
	if t == nil {
		return
	}
	var hedged time.Duration // ago that the first hedge started
	if t.hedge > 0 {
		hedged = e.Took - time.Duration(t.since[t.hedge].Load())
	}
	late, vain := t.health.isLate(t.fit, t.primary, e.Took), t.health.isLate(t.fit, t.primary, hedged)
	switch {
	case t.broken.Load(): // which was counted then
	case e.Winner < 0:
		if t.pastDeadline(e) {
			t.health.overtaken(t.primary)
		}
	case e.Winner == 0:
		if t.hedge > 0 && vain {
			t.health.hedgeEnded(t.primary, false)
		}
		if late && !t.health.isVain(t.primary) {
			t.health.overtaken(t.primary)
		} else if !e.Denied {
			t.health.outcome(t.primary, true)
		}
	case e.Winner != t.attempt:
		t.health.hedgeEnded(t.primary, true)
		if t.Endpoint(e.Winner) > t.primary {
			t.health.overtaken(t.primary)
		}
	}
	if t.stayed && late {
		t.health.doubted(t.primary)
	}
	switch {
	case t.attempt == 0 || t.failed.Load():
	case e.Winner == t.attempt:
		t.health.outcome(t.probes, true)
	case e.Winner == 0 && t.given > 0 && e.Took >= t.given:
		t.health.overtaken(t.probes)
	}
}
