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

func TestAnEndpointIsOutAfterSixFailuresInARowAndBackAfterThirtyTwoGoodOnes(t *testing.T) {
	h := new(Health)
	h.primary(both) // calls go there
	h.hedged(1)     // which is known to the other one by then
	for range badRow - 1 {
		h.outcome(0, false)
	}
	h.outcome(0, true)
	for range badRow - 1 {
		h.outcome(0, false)
	}
	require.Equal(t, 0, h.primary(both))
	h.outcome(0, false)
	require.Equal(t, 1, h.primary(both))
	for range goodRow - 1 {
		h.outcome(0, true)
	}
	assert.Equal(t, 1, h.primary(both))
	h.outcome(0, false)
	for range goodRow - 1 {
		h.outcome(0, true)
	}
	assert.Equal(t, 1, h.primary(both), "in a row")
	h.outcome(0, true)
	assert.Equal(t, 0, h.primary(both))
}

func TestAnEndpointIsOutIfATenthOfItsCallsIsBad(t *testing.T) {
	for every, out := range map[int]bool{10: true, 20: false} {
		h := new(Health)
		h.hedged(1)
		for i := range 2000 {
			h.outcome(0, i%every != 0)
		}
		assert.Equal(t, out, h.View(0).Ejected, "one in %d", every)
	}
}

func TestIfAllAreOutTheCallGoesWhereItWasBadTheFewestTimes(t *testing.T) {
	h := new(Health)
	for range 100 {
		h.outcome(0, false)
	}
	for range badRow {
		h.outcome(1, false)
	}
	assert.Equal(t, 1, h.primary(both))
	assert.Equal(t, 0, h.primary(1), "which the call can have")
	assert.Equal(t, 0, h.hedge(both, 2, 1), "a hedge goes to the other one all the same")
}

func TestAHedgeAvoidsWhatIsOutButForOneInTen(t *testing.T) {
	h := new(Health)
	for range badRow {
		h.outcome(1, false)
	}
	tried := 0
	for range 100 {
		i := h.hedge(both, 1, 0)
		h.tried(i)
		tried += i
	}
	assert.Equal(t, 100/hedgeEvery, tried)
	h.primary(both)
	h.outcome(1, true)
	assert.Equal(t, 1, h.hedge(both, 1, 0), "no call goes there for it, so one success is enough")
}

func TestAnEndpointThatHedgesPassOverIsTriedByOneInTen(t *testing.T) {
	const four = Mask(15)
	h := new(Health)
	h.primary(four)
	for range badRow {
		h.outcome(1, false)
		h.outcome(2, false)
	}
	to := func(had Mask, primary int) map[int]int {
		n := make(map[int]int)
		for range 100 {
			i := h.hedge(four, had, primary)
			h.tried(i)
			if n[i]++; h.at[i].out {
				h.outcome(i, false)
			}
		}
		return n
	}
	assert.Equal(t, map[int]int{3: 90, 1: 5, 2: 5}, to(1, 0), "those that are ejected have their turns")
	h.outcome(1, true)
	require.False(t, h.View(1).Ejected, "no call goes there for it, so one success is enough")
	assert.Equal(t, map[int]int{1: 100}, to(1, 0), "what comes after it is not passed over")
	for range badRow {
		h.outcome(0, false)
	}
	assert.Equal(t, map[int]int{3: 90, 2: 10}, to(2, 1), "calls try what is before the one that they go to")
}

func TestATourGoesToAllConnectionsBeforeItComesAgain(t *testing.T) {
	const all, first, second, none = Mask(6), Mask(2), Mask(4), Mask(0)
	h := new(Health)
	tour := func(own, ready Mask) (to []int) {
		var tour Tour
		tour.Begin(h, own)
		for n := range 4 {
			endpoint := tour.Next(ready)
			if endpoint > 0 {
				tour.Add(n+1, endpoint, false)
			}
			to = append(to, endpoint)
		}
		return to
	}
	assert.Equal(t, []int{1, 2, 1, 2}, tour(none, all))
	assert.Equal(t, []int{2, 1, 2, 1}, tour(first, all), "the caller's own comes last")
	assert.Equal(t, []int{2, 2, 2, 2}, tour(none, second))
	assert.Equal(t, []int{1, 1, 1, 1}, tour(first, first), "there is no other")
	assert.Equal(t, []int{0, 0, 0, 0}, tour(none, none))
	for range badRow {
		h.outcome(1, false)
	}
	assert.Equal(t, []int{2, 2, 2, 2}, tour(none, all), "one that is ejected is passed over")
	assert.Equal(t, []int{0, 0, 0, 0}, tour(none, first))
}

// TestFailedProbeIsCountedOnce has a probe that fails, and one that answers though the primary has failed.
func TestFailedProbeIsCountedOnce(t *testing.T) {
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	h := new(Health)
	for range badRow {
		h.outcome(0, false)
	}
	before := h.View(0).Failures
	trip := s.Begin(t.Context(), h, both)
	require.Equal(t, 1, trip.Primary())
	trip.probes = 0
	trip.Add(1, 0, true)
	trip.Ended(1, false, false)
	trip.Ended(0, true, false)
	trip.End(End{Winner: 0})
	assert.Equal(t, before+1, h.View(0).Failures)

	good := h.at[0].good
	trip = s.Begin(t.Context(), h, both)
	trip.probes = 0
	trip.Add(1, 0, true)
	trip.Ended(0, false, false)
	trip.Ended(1, true, false)
	trip.End(End{Winner: 1})
	assert.Equal(t, good+1, h.at[0].good)
	assert.Zero(t, h.View(1).Overtaken, "the primary has failed, and was not slower")
}

func TestURLsOfEndpointsAreReadStrictly(t *testing.T) {
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
		_, err := New([]Endpoint{{URL: "http://near.test/api"}, {URL: given}})
		require.Error(t, err, given)
		assert.Contains(t, err.Error(), "endpoint 2: ")
		assert.Contains(t, err.Error(), want)
		assert.NotContains(t, err.Error(), "s3cret")
	}
	s, err := New([]Endpoint{{URL: "http://[::1]:8080"}, {URL: "https://B\u00fccher.test:"}, {URL: "http://192.0.2.1:65535/a%20b"}})
	require.NoError(t, err)
	assert.Equal(t, "B\u00fccher.test", s.all[1].authority, "an empty port is none")
	fit, stays := s.Fits(&http.Request{URL: &url.URL{Scheme: "http", Host: "[::1]:8080", Path: "/x"}})
	assert.Equal(t, Mask(7), fit)
	assert.Empty(t, stays)
}

// FuzzWhatGoesToAnotherHost: whatever the URL is, a path never leaves that of an endpoint, nothing reaches another host that the endpoint does not keep, and
// a redirect that leads home leads to where the same path is.
func FuzzWhatGoesToAnotherHost(f *testing.F) {
	for _, s := range []string{"/api/a?x=1", "/api/..%2fa", "/api/%2e%2e/a", "/api;x/../a", "/api/a?x=1;sig=s3cret", "/api?a=1&&X-Amz-Signature=s3cret", "/apis", "/api//a"} {
		f.Add(s)
	}
	s, err := New([]Endpoint{{URL: "http://near.test/api"}, {URL: "http://far.test/mirror/v1", Keep: []string{"x"}, Prepare: func(*http.Request) error { return nil }}})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.Parse("http://near.test" + target)
		if err != nil || u.Host != "near.test" {
			return
		}
		req := &http.Request{Method: "GET", URL: u, Header: http.Header{"Authorization": {"s3cret"}}}
		if fit, _ := s.Fits(req); !fit.Has(1) {
			return
		}
		s.all[1].move(req, &s.all[0], "")
		require.Equal(t, "far.test", req.URL.Host)
		require.True(t, strings.HasPrefix(req.URL.EscapedPath(), "/mirror/v1"))
		require.True(t, strings.HasPrefix(req.URL.JoinPath().Path, "/mirror/v1"), req.URL.Path)
		require.Empty(t, req.Header)
		require.NotContains(t, req.URL.EscapedPath(), ";")
		for name := range req.URL.Query() {
			require.Contains(t, []string{"x", "X"}, name)
		}
		home, err := s.home(req.URL, 0)
		require.NoError(t, err)
		require.Equal(t, u.EscapedPath(), home.EscapedPath())
	})
}

// TestFirstHedgeStaysWhereItIsSoonerAnswered has a next endpoint that is known to take longer than calls take.
func TestFirstHedgeStaysWhereItIsSoonerAnswered(t *testing.T) {
	const usual = 5 * time.Millisecond
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test", Cost: 3}})
	require.NoError(t, err)
	next := func(h *Health, hedges int) (endpoints []int) {
		trip := s.Begin(t.Context(), h, both)
		trip.usual = usual
		for n := range hedges {
			endpoint, _ := trip.Next(false)
			trip.Add(n+1, endpoint, false)
			endpoints = append(endpoints, endpoint)
		}
		return endpoints
	}
	h := new(Health)
	assert.Equal(t, []int{1, 0}, next(h, 2), "it is not known how far it is")
	h.silent(1, time.Duration(farther*float64(usual))-1)
	assert.Equal(t, []int{1, 0}, next(h, 2))
	h.silent(1, time.Duration(farther*float64(usual)))
	assert.Equal(t, []int{0}, next(h, 1))
	assert.Equal(t, []int{0, 1}, next(h, 2))
	assert.Equal(t, []int{1, 0}, next(h, 2), "two attempts of a call were there for long")
	h.outcome(0, true)
	assert.Equal(t, []int{0, 1, 0}, next(h, 3))
	h.outcome(0, true)
	h.outcome(0, false)
	assert.Equal(t, []int{1, 0}, next(h, 2), "the last outcome is bad")

	h.outcome(0, true)
	trip := s.Begin(t.Context(), h, both)
	trip.usual = usual
	assert.Equal(t, 1, trip.Usually(), "the first hedge stays")
	h.at[1].quick = 0
	assert.Equal(t, 3, trip.Usually(), "the first hedge goes elsewhere")
}

// TestSecondHedgeStaysAtAnEndpointThatAnswersOtherCalls needs prompt answers that came after the call began.
func TestSecondHedgeStaysAtAnEndpointThatAnswersOtherCalls(t *testing.T) {
	const usual, away = 5 * time.Millisecond, 80 * time.Millisecond
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	for took, want := range map[time.Duration]int{0: 1, usual: 0, away: 1} {
		synctest.Test(t, func(t *testing.T) {
			h := new(Health)
			h.answered(both, 1, away)
			h.answered(both, 0, usual) // before the call
			time.Sleep(usual)
			trip := s.Begin(t.Context(), h, both)
			trip.usual = usual
			time.Sleep(usual)
			endpoint, _ := trip.Next(false)
			require.Equal(t, 0, endpoint)
			trip.Add(1, endpoint, false)
			if took > 0 {
				h.answered(both, 0, took)
			}
			endpoint, _ = trip.Next(false)
			assert.Equal(t, want, endpoint, "another call was answered after %v", took)
			assert.Equal(t, want == 1, h.at[0].doubt)
		})
	}
}

// TestEndpointIsBadOnlyForCallsThatHedgesThereDoNotHelp plays one call that takes that long, with a next endpoint that answers after 80 ms.
func TestEndpointIsBadOnlyForCallsThatHedgesThereDoNotHelp(t *testing.T) {
	const away = 80 * time.Millisecond
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		hedge  int // the endpoint of the hedge; -1: none is sent
		end    End
		before func(h *Health)
		bad    bool
	}{
		"hedge at the same endpoint wins":  {0, End{Winner: 1, Took: 2 * away}, nil, false},
		"hedge elsewhere wins":             {1, End{Winner: 1, Took: 2 * away}, nil, true},
		"hedge at the same endpoint loses": {0, End{Winner: 0, Took: 2 * away}, nil, false},
		"no hedge, and a late answer":      {-1, End{Winner: 0, Took: 2 * away}, nil, true},
		"no hedge, and an answer in time":  {-1, End{Winner: 0, Took: 2*away - 1}, nil, false},
		"denied hedge, and a late answer":  {-1, End{Winner: 0, Took: 2 * away, Denied: true}, nil, true},
		"late where hedges were in vain":   {-1, End{Winner: 0, Took: 2 * away}, func(h *Health) { h.hedgeEnded(0, false) }, false},
		"late where hedges have won since": {-1, End{Winner: 0, Took: 2 * away}, func(h *Health) { h.hedgeEnded(0, false); h.hedgeEnded(0, true) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := new(Health)
			for range minAnswers {
				h.answered(both, 1, away)
			}
			if c.before != nil {
				c.before(h)
			}
			trip := s.Begin(t.Context(), h, both)
			if c.hedge >= 0 {
				trip.Add(1, c.hedge, false)
			}
			trip.End(c.end)
			assert.Equal(t, c.bad, h.View(0).Overtaken == 1)
		})
	}
}

// TestEndpointIsNotBadForBeingSlowerThanAnEarlierOne has calls go to the second endpoint while the first one is ejected, and end when that is back.
func TestEndpointIsNotBadForBeingSlowerThanAnEarlierOne(t *testing.T) {
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
	require.NoError(t, err)
	h := new(Health)
	for range minAnswers {
		h.answered(both, 0, 5*time.Millisecond)
	}
	h.at[0].out = true
	calls := []*Trip{s.Begin(t.Context(), h, both), s.Begin(t.Context(), h, both)}
	h.at[0].out = false
	calls[0].End(End{Winner: 0, Took: 80 * time.Millisecond})
	calls[1].Add(1, 0, false)
	calls[1].End(End{Winner: 1, Took: 80 * time.Millisecond})
	assert.Zero(t, h.View(1).Overtaken)
}

// TestADeadlineThatPassesBlamesTheEndpointIfMostCallsTakeLess, also where more than one call in a hundred has no answer, so that the 99th
// percentile is the deadline.
func TestADeadlineThatPassesBlamesTheEndpointIfMostCallsTakeLess(t *testing.T) {
	const usual, deadline = 5 * time.Millisecond, 20 * time.Millisecond
	s, err := New([]Endpoint{{URL: "http://near.test"}, {URL: "http://far.test"}})
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
		h := new(Health)
		trip := s.Begin(t.Context(), h, both)
		trip.usual = usual
		trip.End(End{Winner: -1, Late: c.late, Took: c.took, Tail: c.tail})
		assert.Equal(t, c.bad, h.View(0).Overtaken == 1, c)
	}
}

// TestAnEndpointThatAnswersNothingIsOutWithoutHedges: where the budget is spent, nobody has overtaken it.
func TestAnEndpointThatAnswersNothingIsOutWithoutHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away = 80 * time.Millisecond
		begin := func(h *Health, calls int) (to int) {
			for range calls {
				to = h.primary(both)
			}
			return to
		}
		h := new(Health)
		h.hedged(1)
		begin(h, 100)
		time.Sleep(time.Hour)
		require.Equal(t, 0, h.primary(both), "nothing is known of the next one")
		h.answered(both, 1, away)
		h.answered(both, 0, time.Millisecond)
		begin(h, badRow)
		time.Sleep(patient * away)
		require.Equal(t, 0, h.primary(both), "six calls are too few")
		h.answered(both, 0, time.Millisecond)
		begin(h, badRow+1)
		time.Sleep(patient*away - time.Nanosecond)
		require.Equal(t, 0, h.primary(both), "it is not long enough")
		time.Sleep(time.Nanosecond)
		h.silent(0, 0)
		h.silent(0, 0) // two callers that have not waited
		require.Equal(t, 0, h.primary(both))
		assert.Equal(t, 1, h.primary(both))
		assert.True(t, h.View(0).Ejected)
	})
}
