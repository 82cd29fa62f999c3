package endpoint

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const both = Mask(3)

// addHedge adds a hedge, or a probe, at endpoint i.
func (s *Selection) addHedge(i int, isProbe bool) *Attempt {
	hedge := s.nextAttempt()
	hedge.endpoint = i
	s.AddHedge(hedge, isProbe)
	return hedge
}

func TestDetectorEjectsAfterSixFailuresAndRestoresAfterThirtyTwoSuccesses(t *testing.T) {
	d := new(Detector)
	d.SelectPrimary(both) // calls go there
	d.recordHedge(1)      // which is known to the other one by then
	for range ejectRun - 1 {
		d.recordFailure(0)
	}
	d.recordSuccess(0)
	for range ejectRun - 1 {
		d.recordFailure(0)
	}
	require.Equal(t, 0, d.SelectPrimary(both))
	d.recordFailure(0)
	require.Equal(t, 1, d.SelectPrimary(both))
	for range restoreRun - 1 {
		d.recordSuccess(0)
	}
	assert.Equal(t, 1, d.SelectPrimary(both))
	d.recordFailure(0)
	for range restoreRun - 1 {
		d.recordSuccess(0)
	}
	assert.Equal(t, 1, d.SelectPrimary(both), "in a row")
	d.recordSuccess(0)
	assert.Equal(t, 0, d.SelectPrimary(both))
}

func TestDetectorEjectsEndpointWithATenthOfBadOutcomes(t *testing.T) {
	for every, out := range map[int]bool{10: true, 20: false} {
		d := new(Detector)
		d.recordHedge(1)
		for i := range 2000 {
			if i%every == 0 {
				d.recordFailure(0)
			} else {
				d.recordSuccess(0)
			}
		}
		assert.Equal(t, out, d.Snapshot(0).Ejected, "one in %d", every)
	}
}

func TestDetectorSelectsLeastBadEndpointIfAllAreEjected(t *testing.T) {
	d := new(Detector)
	for range 100 {
		d.recordFailure(0)
	}
	for range ejectRun {
		d.recordFailure(1)
	}
	assert.Equal(t, 1, d.SelectPrimary(both))
	assert.Equal(t, 0, d.SelectPrimary(1), "which the call can have")
	assert.Equal(t, 0, d.selectHedge(both, 2, 1), "a hedge goes to the other one all the same")
}

func TestDetectorSendsOneHedgeInTenToEjectedEndpoint(t *testing.T) {
	d := new(Detector)
	for range ejectRun {
		d.recordFailure(1)
	}
	tried := 0
	for range 100 {
		i := d.selectHedge(both, 1, 0)
		d.recordTrial(i)
		tried += i
	}
	assert.Equal(t, 100/hedgesPerEjectedTrial, tried)
	d.SelectPrimary(both)
	d.recordSuccess(1)
	assert.Equal(t, 1, d.selectHedge(both, 1, 0), "no call goes there for it, so one success is enough")
}

func TestDetectorAlternatesEjectedEndpointsThatHedgesPassOver(t *testing.T) {
	const four = Mask(15)
	d := new(Detector)
	d.SelectPrimary(four)
	for range ejectRun {
		d.recordFailure(1)
		d.recordFailure(2)
	}
	to := func(had Mask, primary int) map[int]int {
		n := make(map[int]int)
		for range 100 {
			i := d.selectHedge(four, had, primary)
			d.recordTrial(i)
			if n[i]++; d.endpoints[i].ejected {
				d.recordFailure(i)
			}
		}
		return n
	}
	assert.Equal(t, map[int]int{3: 90, 1: 5, 2: 5}, to(1, 0), "those that are ejected have their turns")
	d.recordSuccess(1)
	require.False(t, d.Snapshot(1).Ejected, "no call goes there for it, so one success is enough")
	assert.Equal(t, map[int]int{1: 100}, to(1, 0), "what comes after it is not passed over")
	for range ejectRun {
		d.recordFailure(0)
	}
	assert.Equal(t, map[int]int{3: 90, 2: 10}, to(2, 1), "calls try what is before the one that they go to")
}

func TestRotationUsesAllConnectionsBeforeItBeginsAgain(t *testing.T) {
	const all, first, second, none = Mask(6), Mask(2), Mask(4), Mask(0)
	d := new(Detector)
	rotate := func(own, ready Mask) (to []int) {
		var r Rotation
		r.Init(d, own)
		for range 4 {
			i := r.SelectHedge(ready)
			if i > 0 {
				r.AddHedge(i)
			}
			to = append(to, i)
		}
		return to
	}
	assert.Equal(t, []int{1, 2, 1, 2}, rotate(none, all))
	assert.Equal(t, []int{2, 1, 2, 1}, rotate(first, all), "the caller's own comes last")
	assert.Equal(t, []int{2, 2, 2, 2}, rotate(none, second))
	assert.Equal(t, []int{1, 1, 1, 1}, rotate(first, first), "there is no other")
	assert.Equal(t, []int{0, 0, 0, 0}, rotate(none, none))
	for range ejectRun {
		d.recordFailure(1)
	}
	assert.Equal(t, []int{2, 2, 2, 2}, rotate(none, all), "one that is ejected is passed over")
	assert.Equal(t, []int{0, 0, 0, 0}, rotate(none, first))
}

func TestRotationDoesNotReuseConnectionAfterDeniedHedge(t *testing.T) {
	const both, first = Mask(6), Mask(2)
	var r Rotation
	r.Init(new(Detector), 0)
	assert.Equal(t, 1, r.SelectHedge(first))
	r.AddHedge(1)
	assert.Equal(t, 1, r.SelectHedge(first), "no other is ready; this hedge is denied, so it is not added")
	assert.Equal(t, 2, r.SelectHedge(both), "the other has become ready")
}

// TestSelectionCountsFailedProbeOnce has a probe that fails, and a probe that answers after the primary has failed.
func TestSelectionCountsFailedProbeOnce(t *testing.T) {
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	d := new(Detector)
	for range ejectRun {
		d.recordFailure(0)
	}
	before := d.Snapshot(0).Failures
	sel := s.Select(t.Context(), d, both)
	require.Equal(t, 1, sel.Primary().endpoint)
	sel.target = 0
	sel.addHedge(0, true).RecordResult(false, false)
	sel.Primary().RecordResult(true, false)
	sel.RecordCallEnd(CallEnd{Winner: 0})
	assert.Equal(t, before+1, d.Snapshot(0).Failures)

	good := d.endpoints[0].goodRun
	sel = s.Select(t.Context(), d, both)
	sel.target = 0
	probe := sel.addHedge(0, true)
	sel.Primary().RecordResult(false, false)
	probe.RecordResult(true, false)
	sel.RecordCallEnd(CallEnd{Winner: 1})
	assert.Equal(t, good+1, d.endpoints[0].goodRun)
	assert.Zero(t, d.Snapshot(1).Overtaken, "the primary has failed, and was not slower")
}

func TestNewRejectsInvalidURLs(t *testing.T) {
	for given, want := range map[string]string{
		"http://a.test:0":               `URL "http://a.test:0" has port 0, which is not in [1, 65535]`,
		"http://a.test:65536":           `URL "http://a.test:65536" has port 65536`,
		"http://[::1]:99999/b":          `has port 99999`,
		"http://u:s3cret@a.test:x":      `URL "http://xxxxx@a.test:x" cannot be read`,
		"http://u:s3cret@a.test/%zz":    `URL "http://xxxxx@a.test/%zz" cannot be read`,
		"ftp://u:s3cret@a.test/?s3cret": `URL "ftp://xxxxx@a.test/?xxxxx" is not http://host`,
		"http://s3cret@a.test/":         `URL "http://xxxxx@a.test/" has credentials`,
		"http://a.test/b?sig=s3cret":    `URL "http://a.test/b?xxxxx" has more than a path`,
		"http://a.test/%zz?sig=s3cret":  `URL "http://a.test/%zz?xxxxx" cannot be read`,
		"http://:80":                    "is not http://host",
		"//a.test":                      "is not http://host",
		"a.test:80":                     "URL ",
		"http://a b":                    "cannot be read",
		"http://near.test.:80/api/":     "is that of another endpoint",
		"HTTP://NEAR.TEST:/api":         "is that of another endpoint",
		"http://near.test/api/%2e%2e/":  "that servers would shorten",
	} {
		_, err := NewSet([]Config{{URL: "http://near.test/api"}, {URL: given}})
		require.Error(t, err, given)
		assert.Contains(t, err.Error(), "endpoint 2: ")
		assert.Contains(t, err.Error(), want)
		assert.NotContains(t, err.Error(), "s3cret")
	}
	s, err := NewSet([]Config{{URL: "http://[::1]:8080"}, {URL: "https://B\u00fccher.test:"}, {URL: "http://192.0.2.1:65535/a%20b"}})
	require.NoError(t, err)
	assert.Equal(t, "B\u00fccher.test", s.endpoints[1].authority, "an empty port is none")
	eligible, obstacle := s.Eligible(&http.Request{URL: &url.URL{Scheme: "http", Host: "[::1]:8080", Path: "/x"}})
	assert.Equal(t, Mask(7), eligible)
	assert.Empty(t, obstacle)
}

// FuzzRewriteRequest checks for any URL that the path of a request stays below the base path of its endpoint, and that
// another host gets only headers and parameters that it may get. A mapped redirect must lead to the resource with the
// same path.
func FuzzRewriteRequest(f *testing.F) {
	for _, s := range []string{"/api/a?x=1", "/api/..%2fa", "/api/%2e%2e/a", "/api;x/../a", "/api/a?x=1;sig=s3cret", "/api?a=1&&X-Amz-Signature=s3cret", "/apis", "/api//a"} {
		f.Add(s)
	}
	s, err := NewSet([]Config{{URL: "http://near.test/api"}, {URL: "http://far.test/mirror/v1", Keep: []string{"x"}, Prepare: func(*http.Request) error { return nil }}})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.Parse("http://near.test" + target)
		if err != nil || u.Host != "near.test" {
			return
		}
		req := &http.Request{Method: "GET", URL: u, Header: http.Header{"Authorization": {"s3cret"}}}
		if eligible, _ := s.Eligible(req); !eligible.Has(1) {
			return
		}
		s.endpoints[1].rewriteRequest(req, &s.endpoints[0], "")
		require.Equal(t, "far.test", req.URL.Host)
		require.True(t, strings.HasPrefix(req.URL.EscapedPath(), "/mirror/v1"))
		require.True(t, strings.HasPrefix(req.URL.JoinPath().Path, "/mirror/v1"), req.URL.Path)
		require.Empty(t, req.Header)
		require.NotContains(t, req.URL.EscapedPath(), ";")
		for name := range req.URL.Query() {
			require.Contains(t, []string{"x", "X"}, name)
		}
		home, err := s.mapToFirst(req.URL, 0)
		require.NoError(t, err)
		require.Equal(t, u.EscapedPath(), home.EscapedPath())
	})
}

// TestSelectionKeepsFirstHedgeAtFasterEndpoint has a next endpoint that is known to be slower than the usual latency.
func TestSelectionKeepsFirstHedgeAtFasterEndpoint(t *testing.T) {
	const usual = 5 * time.Millisecond
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test", Cost: 3}})
	require.NoError(t, err)
	next := func(d *Detector, hedges int) (endpoints []int) {
		sel := s.Select(t.Context(), d, both)
		sel.median = usual
		for range hedges {
			hedge := sel.SelectHedge(false)
			sel.AddHedge(hedge, false)
			endpoints = append(endpoints, hedge.endpoint)
		}
		return endpoints
	}
	d := new(Detector)
	assert.Equal(t, []int{1, 0}, next(d, 2), "it is not known how far it is")
	d.recordNoAnswer(1, time.Duration(slowerFactor*float64(usual))-1)
	assert.Equal(t, []int{1, 0}, next(d, 2))
	d.recordNoAnswer(1, time.Duration(slowerFactor*float64(usual)))
	assert.Equal(t, []int{0}, next(d, 1))
	assert.Equal(t, []int{0, 1}, next(d, 2))
	assert.Equal(t, []int{1, 0}, next(d, 2), "two attempts of a call were there for long")
	d.recordSuccess(0)
	assert.Equal(t, []int{0, 1, 0}, next(d, 3))
	d.recordSuccess(0)
	d.recordFailure(0)
	assert.Equal(t, []int{1, 0}, next(d, 2), "the last outcome is bad")

	d.recordSuccess(0)
	sel := s.Select(t.Context(), d, both)
	sel.median = usual
	assert.Equal(t, 1, sel.TypicalCost(), "the first hedge stays")
	d.endpoints[1].expectedLatency = 0
	assert.Equal(t, 3, sel.TypicalCost(), "the first hedge goes elsewhere")
}

// TestSelectionKeepsSecondHedgeAtEndpointThatAnswersOtherCalls has prompt answers before and after the start of the
// call. Only later ones count.
func TestSelectionKeepsSecondHedgeAtEndpointThatAnswersOtherCalls(t *testing.T) {
	const usual, away = 5 * time.Millisecond, 80 * time.Millisecond
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	for took, want := range map[time.Duration]int{0: 1, usual: 0, away: 1} {
		synctest.Test(t, func(t *testing.T) {
			d := new(Detector)
			d.recordAnswer(both, 1, away)
			d.recordAnswer(both, 0, usual) // before the call
			time.Sleep(usual)
			sel := s.Select(t.Context(), d, both)
			sel.median = usual
			time.Sleep(usual)
			hedge := sel.SelectHedge(false)
			require.Equal(t, 0, hedge.endpoint)
			sel.AddHedge(hedge, false)
			if took > 0 {
				d.recordAnswer(both, 0, took)
			}
			assert.Equal(t, want, sel.SelectHedge(false).endpoint, "another call was answered after %v", took)
			assert.Equal(t, want == 1, d.endpoints[0].suspected)
		})
	}
}

// TestSelectionCountsBadOutcomeOnlyIfHedgesThereDoNotHelp makes one call of the given duration, with a next endpoint
// that answers after 80 ms.
func TestSelectionCountsBadOutcomeOnlyIfHedgesThereDoNotHelp(t *testing.T) {
	const away = 80 * time.Millisecond
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		hedge  int // the endpoint of the hedge; -1: none is sent
		end    CallEnd
		before func(d *Detector)
		bad    bool
	}{
		"hedge at the same endpoint wins":  {0, CallEnd{Winner: 1, Latency: 2 * away}, nil, false},
		"hedge elsewhere wins":             {1, CallEnd{Winner: 1, Latency: 2 * away}, nil, true},
		"hedge at the same endpoint loses": {0, CallEnd{Winner: 0, Latency: 2 * away}, nil, false},
		"no hedge, and a late answer":      {-1, CallEnd{Winner: 0, Latency: 2 * away}, nil, true},
		"no hedge, and an answer in time":  {-1, CallEnd{Winner: 0, Latency: 2*away - 1}, nil, false},
		"denied hedge, and a late answer":  {-1, CallEnd{Winner: 0, Latency: 2 * away, HedgeDenied: true}, nil, true},
		"late where hedges were in vain":   {-1, CallEnd{Winner: 0, Latency: 2 * away}, func(d *Detector) { d.recordHedgeResult(0, false) }, false},
		"late where hedges have won since": {-1, CallEnd{Winner: 0, Latency: 2 * away}, func(d *Detector) { d.recordHedgeResult(0, false); d.recordHedgeResult(0, true) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(Detector)
			for range minLatencies {
				d.recordAnswer(both, 1, away)
			}
			if c.before != nil {
				c.before(d)
			}
			sel := s.Select(t.Context(), d, both)
			if c.hedge >= 0 {
				sel.addHedge(c.hedge, false)
			}
			sel.RecordCallEnd(c.end)
			assert.Equal(t, c.bad, d.Snapshot(0).Overtaken == 1)
		})
	}
}

// TestSelectionCountsNoBadOutcomeForSlowerLaterEndpoint has calls that use the second endpoint while the first one is
// ejected, and end after it is restored.
func TestSelectionCountsNoBadOutcomeForSlowerLaterEndpoint(t *testing.T) {
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	d := new(Detector)
	for range minLatencies {
		d.recordAnswer(both, 0, 5*time.Millisecond)
	}
	d.endpoints[0].ejected = true
	calls := []*Selection{s.Select(t.Context(), d, both), s.Select(t.Context(), d, both)}
	d.endpoints[0].ejected = false
	calls[0].RecordCallEnd(CallEnd{Winner: 0, Latency: 80 * time.Millisecond})
	calls[1].addHedge(0, false)
	calls[1].RecordCallEnd(CallEnd{Winner: 1, Latency: 80 * time.Millisecond})
	assert.Zero(t, d.Snapshot(1).Overtaken)
}

// TestSelectionCountsDeadlineAsBadOutcomeIfMostCallsAreFaster includes the case that more than one in a hundred calls
// has no answer, so that the 99th percentile equals the deadline.
func TestSelectionCountsDeadlineAsBadOutcomeIfMostCallsAreFaster(t *testing.T) {
	const usual, deadline = 5 * time.Millisecond, 20 * time.Millisecond
	s, err := NewSet([]Config{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	for _, c := range []struct {
		took, tail time.Duration
		late, bad  bool
	}{
		{deadline, deadline, true, true},
		{deadline, deadline + 1, true, true},
		{deadline - 1, deadline, true, false},
		{deadline - 1, deadline - 1, true, true},
		{deadline, deadline, false, false},
	} {
		d := new(Detector)
		sel := s.Select(t.Context(), d, both)
		sel.median = usual
		sel.RecordCallEnd(CallEnd{Winner: -1, DeadlinePassed: c.late, Latency: c.took, P99: c.tail})
		assert.Equal(t, c.bad, d.Snapshot(0).Overtaken == 1, c)
	}
}

// TestDetectorDoesNotEjectForEndpointThatNeverAnswered has a next endpoint whose only attempt was cancelled after a millisecond, which says
// nothing about its latency.
func TestDetectorDoesNotEjectForEndpointThatNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(Detector)
		d.recordNoAnswer(1, time.Millisecond)
		for range ejectRun + 1 {
			d.SelectPrimary(both)
		}
		time.Sleep(time.Second)
		assert.Equal(t, 0, d.SelectPrimary(both))
	})
}

// TestDetectorEjectsUnresponsiveEndpointWithoutHedges has no hedges, as if the budget were spent, so that no attempt
// overtakes the endpoint.
func TestDetectorEjectsUnresponsiveEndpointWithoutHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away = 80 * time.Millisecond
		begin := func(d *Detector, calls int) (to int) {
			for range calls {
				to = d.SelectPrimary(both)
			}
			return to
		}
		d := new(Detector)
		d.recordHedge(1)
		begin(d, 100)
		time.Sleep(time.Hour)
		require.Equal(t, 0, d.SelectPrimary(both), "nothing is known of the next one")
		d.recordAnswer(both, 1, away)
		d.recordAnswer(both, 0, time.Millisecond)
		begin(d, ejectRun)
		time.Sleep(unresponsiveFactor * away)
		require.Equal(t, 0, d.SelectPrimary(both), "six calls are too few")
		d.recordAnswer(both, 0, time.Millisecond)
		begin(d, ejectRun+1)
		time.Sleep(unresponsiveFactor*away - time.Nanosecond)
		require.Equal(t, 0, d.SelectPrimary(both), "it is not long enough")
		time.Sleep(time.Nanosecond)
		d.recordNoAnswer(0, 0)
		d.recordNoAnswer(0, 0) // two callers that have not waited
		require.Equal(t, 0, d.SelectPrimary(both))
		assert.Equal(t, 1, d.SelectPrimary(both))
		assert.True(t, d.Snapshot(0).Ejected)
	})
}
