package hedge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/race"
)

// WithResume asks for the rest of an HTTP response body that stalls: by a range request
// (RFC 9110, section 14) over another connection, while the first one goes on. Whichever
// delivers first wins, and the other is cancelled; the reader sees the same bytes in any case.
// The default is to wait.
//
// A body has stalled when a Read waits for twice as long as nineteen of twenty bodies of
// the key ever make one wait, and for 50ms at least. Ten bodies must be known. The request is
// a hedge: the budget pays for it, the brakes hold it back, and [WithMaxHedges] counts it
// among those of its call. Observers are told of it as of other hedges, after the call is done.
//
// Resumed are responses of 64 KiB and more to a GET that may be hedged and asks for no range:
// status 200, with Content-Length, "Accept-Ranges: bytes", and a strong validator (section
// 8.8): an ETag that is not weak or, where there is none, a Last-Modified a minute or more
// before Date. Responses that were decompressed on the way or announce trailers are not, nor
// are encoded ones without an ETag. A 206 must repeat the validator, the encoding and the
// whole length, and begin where the reader is; if not, the first response goes on alone.
//
// The first response is closed, and its context cancelled, while a Read of it waits; that
// must then return, as net/http's does. If the second one fails later on, so does the body.
func WithResume() Option {
	return optionFunc(func(c *config) { c.resume = true })
}

// minResumable is the least length of a body that is resumed. A smaller one arrives with
// its header, or nearly so.
const minResumable = 64 << 10

// clockSkew is how much later than Last-Modified a response must have been made, if the
// former is to be a strong validator, whose clocks may differ.
const clockSkew = time.Minute

// ifRange returns the validator by which the rest of resp can be asked for; "" if it cannot be.
func ifRange(req *http.Request, resp *http.Response) string {
	h := resp.Header
	switch {
	case req.Method != "" && req.Method != http.MethodGet, req.Body != nil && req.Body != http.NoBody,
		len(req.Header["Range"]) > 0, len(req.Header["If-Range"]) > 0,
		resp.StatusCode != http.StatusOK, resp.Body == nil, resp.ContentLength < minResumable,
		resp.Uncompressed, len(resp.Trailer) > 0, len(h["Content-Range"]) > 0, !acceptsRanges(h["Accept-Ranges"]):
		return ""
	}
	if tags := h["Etag"]; len(tags) > 0 { // a client that has one must not send a date
		if len(tags) > 1 || !strongTag(tags[0]) {
			return ""
		}
		return tags[0]
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	date, err2 := http.ParseTime(h.Get("Date"))
	if err != nil || err2 != nil || date.Sub(modified) < clockSkew || len(h["Last-Modified"]) > 1 || len(h["Content-Encoding"]) > 0 {
		return ""
	}
	return h.Get("Last-Modified")
}

func acceptsRanges(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool {
		for unit := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(unit), "bytes") {
				return true
			}
		}
		return false
	})
}

// strongTag reports whether tag is an entity tag (RFC 9110, section 8.8.3) that is not weak.
func strongTag(tag string) bool {
	return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' && !strings.ContainsAny(tag[1:len(tag)-1], "\" \x7f")
}

// continues reports whether rest holds the bytes from off on, all of them, of a body of the
// given length that came with the header whole.
func continues(whole http.Header, length int64, rest *http.Response, off int64) bool {
	ranges := rest.Header["Content-Range"]
	if rest.StatusCode != http.StatusPartialContent || rest.Body == nil || rest.Uncompressed ||
		len(ranges) != 1 || !strings.EqualFold(ranges[0], fmt.Sprintf("bytes %d-%d/%d", off, length-1, length)) ||
		rest.ContentLength >= 0 && rest.ContentLength != length-off {
		return false
	}
	same := func(name string) bool { return slices.Equal(whole[name], rest.Header[name]) }
	sameIfTold := func(name string) bool { return len(rest.Header[name]) == 0 || same(name) }
	modified := same // nothing else says that it is the same version
	if len(whole["Etag"]) > 0 {
		modified = sameIfTold
	}
	return same("Etag") && modified("Last-Modified") && same("Content-Encoding") && sameIfTold("Content-Type")
}

// resumable returns resp, the answer of the attempt of that number, or a copy of it whose body
// learns how it pauses and, if it stalls, is resumed. Started is how many attempts the call has
// made. The attempt is nil if the call could not be hedged; then the body only learns.
func (t *Transport) resumable(c *call, req *http.Request, resp *http.Response, a *race.Attempt, number, started int) *http.Response {
	validator := ifRange(req, resp)
	if validator == "" {
		return resp
	}
	b := &resumableBody{
		t: t, key: c.key, ctx: req.Context(), resp: resp, validator: validator, peer: c.peer.Load(),
		shown: *resp, made: time.Now(), source: source{resp.Body, a, number > 0}, next: started,
	}
	if a != nil {
		b.left = max(t.settings.Load().MaxHedges+1-started, 0)
	}
	if b.left > 0 {
		b.stall = c.key.Stall()
	}
	if b.stall > 0 {
		b.header, b.sent = resp.Header.Clone(), c.snapshot(req)
	}
	b.shown.Body = b
	return &b.shown
}

// source is where a body comes from.
type source struct {
	io.ReadCloser
	attempt *race.Attempt // nil: it has no context of its own
	hedge   bool          // it was sent where hedges go
}

// interrupt ends a source that has lost, so that a Read of it returns.
func (s source) interrupt(stats *Stats) {
	defer func() {
		if recover() != nil {
			stats.HedgePanics.Add(1)
		}
	}()
	s.attempt.Lose()
	_ = s.ReadCloser.Close() // the reader has something better than its error
}

func (s source) release() {
	if s.attempt != nil {
		s.attempt.Release()
	}
}

// A resumableBody is a body that can go on with another response when the first one stalls.
//
// Read reads from its source in the caller's goroutine, into the caller's memory. One
// timer looks now and then whether a Read has been waiting for too long. If so, its goroutine
// asks for the rest; when that arrives first, it interrupts the Read, which then goes on
// with the rest, from where it really is.
type resumableBody struct {
	t         *Transport
	key       *engine.Key
	ctx       context.Context // the caller's
	sent      *snapshot       // what the rest is asked for with; nil if it never is
	resp      *http.Response  // as it came, but for its header, which the caller has
	header    http.Header     // a copy of that; nil if the rest is never asked for
	shown     http.Response   // what the caller has
	validator string
	peer      *peerAddr // where the primary went; nil: not known, or not needed
	made      time.Time
	stall     time.Duration // a Read that waits for so long has met a stall; 0: not known, or none is resumed

	since   atomic.Int64 // when the Read in progress began, since made and plus 1; negative: it waits while the rest is asked for; 0: there is none
	done    atomic.Int64 // bytes read; it grows before since changes
	longest atomic.Int64 // ns that a Read has waited
	watched atomic.Bool  // the timer is set, or is not needed any more

	// The reader's own. It changes source with mu locked.
	source  source
	contest bool  // the rest was being asked for when a Read returned without anything
	failed  error // the source's; nil: it goes on, or nobody waits for the rest any more

	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	retry   time.Duration // until a hedge that was denied is asked for again
	rest    *rest         // nil: none is asked for, or it has lost
	left    int           // how often the rest may still be asked for
	next    int           // the number of the next attempt
	learned bool
	closed  bool
	closer  source // what to close, once closed
	gone    bool   // closed while the reader had the source that lost
}

// A rest is a request for the rest of a body, and its answer. The body's mu guards it.
type rest struct {
	number  int
	off     int64
	attempt *race.Attempt
	decided chan struct{} // closed when it has won or lost
	over    bool          // decided is closed
	won     bool
	source  source // if it has won; from off on
}

// decide ends the contest. The caller holds mu.
func (r *rest) decide(won bool) {
	r.over, r.won = true, won
	close(r.decided)
}

func (b *resumableBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return b.await(p)
	}
	start := int64(time.Since(b.made)) + 1
	b.since.Store(start)
	if b.stall > 0 && !b.watched.Load() {
		b.watch()
	}
	n, err := b.source.Read(p)
	b.done.Add(int64(n))
	contest := b.since.Swap(0) < 0 || b.contest
	if waited := int64(time.Since(b.made)) + 1 - start; waited > b.longest.Load() {
		b.longest.Store(waited)
	}
	if err == nil && !contest {
		return n, nil
	}
	return b.settle(p, n, err)
}

// settle decides what a Read returns that came to an end, or met a stall.
func (b *resumableBody) settle(p []byte, n int, err error) (int, error) {
	b.mu.Lock()
	r := b.rest
	switch {
	case r == nil: // nobody competes
		gone := b.gone
		b.contest = false
		b.mu.Unlock()
		if gone {
			err = http.ErrBodyReadAfterClose
		}
		if err != nil {
			b.end(err)
		}
		return n, err
	case r.won:
		b.adopt()
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.Read(p)
	case err != nil && err != io.EOF: // kept from the caller while the rest may still come
		b.failed = err
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		return b.await(p)
	case n == 0 && err == nil && len(p) > 0:
		b.contest = true
		b.mu.Unlock()
		return 0, nil
	}
	r.decide(false)
	b.rest, b.contest = nil, false
	b.watched.Store(b.left == 0)
	b.mu.Unlock()
	r.attempt.Lose()
	if err != nil {
		b.end(err)
	}
	return n, err
}

// await waits for the rest, which alone can go on: the source has failed.
func (b *resumableBody) await(p []byte) (int, error) {
	b.mu.Lock()
	r := b.rest
	b.mu.Unlock()
	if r != nil {
		select {
		case <-r.decided:
		case <-b.ctx.Done():
		}
	}
	b.mu.Lock()
	if r != nil && r.won && !b.closed {
		b.adopt()
		b.mu.Unlock()
		return b.Read(p)
	}
	if r != nil && !r.over {
		r.decide(false)
	}
	b.rest, b.contest = nil, false
	b.mu.Unlock()
	if r != nil {
		r.attempt.Lose()
	}
	err := b.failed
	b.failed = nil // the source will say it again
	b.end(err)
	return 0, err
}

// adopt goes on with the rest. The caller holds mu.
func (b *resumableBody) adopt() {
	r, done := b.rest, b.done.Load()
	b.source = r.source
	b.source.ReadCloser = &tail{r.source.ReadCloser, done - r.off, b.resp.ContentLength - done}
	b.rest, b.contest, b.failed = nil, false, nil
	b.watched.Store(b.left == 0)
}

// tail is the rest of a body, from some bytes before the reader on.
type tail struct {
	io.ReadCloser
	skip int64 // bytes that the reader has
	left int64 // bytes that it has not
}

func (t *tail) Read(p []byte) (int, error) {
	for t.left > 0 {
		want := t.left
		if t.skip > 0 {
			want = t.skip
		}
		n, err := t.ReadCloser.Read(p[:min(int64(len(p)), want)])
		switch {
		case t.skip > 0:
			t.skip -= int64(n)
			n = 0
		default:
			t.left -= int64(n)
		}
		switch {
		case t.left == 0: // whatever the server may have to add
			return n, io.EOF
		case err == io.EOF:
			return n, io.ErrUnexpectedEOF
		case n > 0 || err != nil || len(p) == 0:
			return n, err
		}
	}
	return 0, io.EOF
}

// Close closes the body, and what was asked for its rest.
func (b *resumableBody) Close() error {
	b.mu.Lock()
	if b.closed {
		closer := b.closer
		b.mu.Unlock()
		return closer.Close()
	}
	b.closed, b.closer = true, b.source
	r := b.rest
	switch {
	case r == nil:
	case r.won:
		b.closer, b.gone = r.source, true
	default:
		r.decide(false)
	}
	b.rest = nil
	closer := b.closer
	b.mu.Unlock()
	err := closer.Close()
	if r != nil && !r.won {
		r.attempt.Lose()
	}
	b.finish(closer)
	return err
}

// end is called when the body has come to its end, or has failed.
func (b *resumableBody) end(err error) {
	if err == io.EOF && b.resp.Trailer != nil {
		b.shown.Trailer = b.resp.Trailer
	}
	b.finish(b.source)
}

// finish learns from the body, and lets go of what it holds. It may be called again.
func (b *resumableBody) finish(s source) {
	s.release()
	longest := time.Duration(b.longest.Load())
	if since := b.since.Load(); since != 0 { // closed while a Read waits
		longest = max(longest, time.Since(b.made)-time.Duration(max(since, -since)-1))
	}
	whole := b.done.Load() >= b.resp.ContentLength

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	// Of a body that is not read whole nothing is known but that it may have been slow.
	if !b.learned && (whole || b.stall > 0 && longest > b.stall) {
		b.key.Paused(longest)
	}
	b.learned, b.left = true, 0
}

// watch sets the timer, if it is not set.
func (b *resumableBody) watch() {
	if b.watched.Swap(true) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.left == 0 || b.closed:
	case b.timer == nil:
		b.timer = time.AfterFunc(b.stall, b.look)
	default:
		b.timer.Reset(b.stall)
	}
}

// pause leaves the timer to the next Read, as none waits. The caller holds mu.
func (b *resumableBody) pause() {
	b.watched.Store(false)
	if b.since.Load() != 0 && !b.watched.Swap(true) { // it has come meanwhile, and believes that the timer is set
		b.timer.Reset(b.stall)
	}
}

// look is called by the timer. It asks for the rest if a Read has been waiting for too long.
func (b *resumableBody) look() {
	if ask, r := b.stalled(); r != nil {
		b.resume(ask, r)
	}
}

// stalled returns the request for the rest, if it is time for that.
func (b *resumableBody) stalled() (ask *call, r *rest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 || b.closed || b.rest != nil {
		return nil, nil
	}
	since := b.since.Load()
	if since == 0 {
		b.pause()
		return nil, nil
	}
	if waited := time.Since(b.made) - time.Duration(since-1); waited < b.stall {
		b.timer.Reset(b.stall - waited)
		b.retry = 0
		return nil, nil
	}
	off := b.done.Load()
	if off >= b.resp.ContentLength || b.t.off.Load() || b.ctx.Err() != nil {
		return nil, nil
	}
	if !b.since.CompareAndSwap(since, -since) { // it has just returned
		b.pause()
		return nil, nil
	}
	ask = &call{t: b.t, key: b.key, guarded: httpVersion(b.key) != http2, likePrimary: b.source.hedge}
	ask.peer.Store(b.peer)
	ask.BeginRest(b.ctx, b.key)
	if !ask.Call.Admit(0) {
		b.since.CompareAndSwap(-since, since)
		if ask.Denied == DeniedShadow {
			b.left = 0
		} else {
			b.retry = max(2*b.retry, b.stall)
			b.timer.Reset(b.retry)
		}
		return nil, nil
	}
	ask.sent, ask.sent.bare = *b.sent, false
	ask.sent.names = slices.Concat(b.sent.names, []name{{"Range", 1}, {"If-Range", 1}})
	ask.sent.values = slices.Concat(b.sent.values, []string{fmt.Sprintf("bytes=%d-", off), b.validator})
	r = &rest{number: b.next, off: off, attempt: race.NewAttempt(b.ctx, b.next), decided: make(chan struct{})}
	b.next++
	b.left--
	b.rest = r
	b.t.stats.HedgesSent.Add(1)
	b.t.stats.Resumes.Add(1)
	return ask, r
}

// errNotTheRest is the error of an answer that holds something else than the rest.
var errNotTheRest = errors.New("hedge: answer is not the rest of the body")

// resume asks for the rest, and hands it over if it is first.
func (b *resumableBody) resume(ask *call, r *rest) {
	var (
		resp *http.Response
		err  error = new(race.Panic) // unless Attempt returns
	)
	defer func() {
		if p := recover(); p != nil {
			err = &race.Panic{Value: p}
		}
		b.resumed(ask, r, resp, err)
	}()
	ask.Started(r.attempt, r.number)
	resp, err = ask.Attempt(r.attempt, r.number)
	if err != nil {
		return
	}
	if !continues(b.header, b.resp.ContentLength, resp, r.off) {
		err = errNotTheRest
		return
	}
	err = awaitFirstByte(resp)
	if first := resp.Body.(*prefetched); err == nil && first.err != nil && int64(len(first.beginning)) < b.resp.ContentLength-r.off {
		err = errNotTheRest // it ends too soon
	}
}

// resumed takes the answer to the request for the rest, or what became of it.
func (b *resumableBody) resumed(ask *call, r *rest, resp *http.Response, err error) {
	b.mu.Lock()
	how, loser := race.OutcomeOf(err), b.source
	switch {
	case r.over:
		how = race.Lost
	case err == nil:
		r.source = source{resp.Body, r.attempt, !ask.likePrimary}
		r.decide(true)
	default:
		b.rest, b.left = nil, 0 // the source goes on alone
		r.decide(false)
	}
	b.mu.Unlock()
	won := how == race.Won
	ask.EndRest(won)
	if won {
		b.t.stats.ResumeWins.Add(1)
		loser.interrupt(b.t.stats)
	} else {
		r.attempt.Lose()
		ask.Discard(resp, err)
	}
	ask.Finished(r.attempt, r.number, how)
}
