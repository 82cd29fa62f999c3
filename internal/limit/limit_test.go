package limit_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/observe"
)

const ms = time.Millisecond

// A server works on as many requests as its Finder allows. Callers who come again at once keep that many there; 0: as many as it allows.
type server struct {
	*limit.Finder
	takes   func(n int) time.Duration // with n at work
	even    bool                      // each takes just so long, and not half more or less
	now     time.Duration
	working []request // by when they end
	least   int       // of the limits, since the last call of run
	most    int
}

type request struct {
	ends  time.Duration
	stamp limit.Stamp
}

// run has callers make requests for a while.
func (s *server) run(long time.Duration, callers int) {
	s.least, s.most = s.Limit(), s.Limit()
	for end := s.now + long; s.now < end; {
		for len(s.working) < min(callers, s.Limit()) {
			stamp := s.Begin(s.now, callers > s.Limit())
			took := s.takes(len(s.working) + 1)
			if !s.even {
				took = time.Duration((.5 + rand.Float64()) * float64(took))
			}
			at, _ := slices.BinarySearchFunc(s.working, s.now+took, func(r request, t time.Duration) int { return int(r.ends - t) })
			s.working = slices.Insert(s.working, at, request{s.now + took, stamp})
		}
		r := s.working[0]
		if waiting := callers - len(s.working); waiting > 0 && r.ends > s.now+25*ms {
			s.now += 25 * ms
			s.Wake(s.now, waiting)
			continue
		}
		s.working = s.working[1:]
		s.now = r.ends
		s.End(s.now, r.stamp, max(0, callers-len(s.working)-1), true)
		s.least, s.most = min(s.least, s.Limit()), max(s.most, s.Limit())
	}
}

// computing is what a request takes of processors that compute for 10 ms.
func computing(processors int) func(int) time.Duration {
	return func(n int) time.Duration {
		return 10 * ms * time.Duration(max(n, processors)) / time.Duration(processors)
	}
}

func TestAFinderFindsHowManyProcessorsThereAre(t *testing.T) {
	for _, start := range []int{1, 10000} {
		for _, processors := range []int{1, 8, 100} {
			s := &server{Finder: limit.New(start), takes: computing(processors)}
			some := func() { s.run(10*ms*time.Duration(1+rand.IntN(9)), 1+rand.IntN(10*processors)) } // callers come and go
			for s.now < 20*time.Second {
				some()
			}
			for s.now < 40*time.Second {
				some()
				assert.LessOrEqual(t, s.most, 6*processors, "from %d", start)
			}
			assert.GreaterOrEqual(t, s.most, processors, "from %d", start)
		}
	}
}

// Where as many are at work all the time and none waits, there is nothing to compare.
func TestAFinderFindsOutWhatFewerWouldDo(t *testing.T) {
	s := &server{Finder: limit.New(10000), takes: computing(8)}
	s.run(10*time.Minute, 100)
	s.run(10*time.Second, 100)
	assert.LessOrEqual(t, s.most, 32)
	assert.GreaterOrEqual(t, s.most, 8)
}

func TestAFinderFollowsItsServer(t *testing.T) {
	processors := 16
	s := &server{Finder: limit.New(1), takes: func(n int) time.Duration { return computing(processors)(n) }}
	s.run(20*time.Second, 200)
	processors = 64
	s.run(20*time.Second, 200)
	s.run(10*time.Second, 200)
	assert.GreaterOrEqual(t, s.most, 64)
	processors = 4 // a request takes half a second now, which is 100 of them
	s.run(50*time.Second, 200)
	s.run(10*time.Second, 200)
	assert.LessOrEqual(t, s.most, 24)
	assert.GreaterOrEqual(t, s.most, 4)
}

func TestAFinderOfAFastServerThatBecomesSlowFindsRoom(t *testing.T) {
	for range 3 {
		takes := ms
		s := &server{Finder: limit.New(10000), takes: func(int) time.Duration { return takes }, even: true}
		for s.now < 30*time.Second {
			s.run(time.Duration(rand.Int64N(int64(4*ms))), 1+rand.IntN(5))
		}
		takes = 100 * ms
		for callers := range 1000 { // one more each millisecond
			s.run(ms, 5+callers)
		}
		s.run(15*time.Second, 1000)
		assert.GreaterOrEqual(t, s.most, 1000, "the last move was %v", s.Last())
	}
}

// In lockstep, those who have waited begin while fewer than the limit are at work, and yet they have waited for it.
func TestAFinderFindsRoomThoughAllEndTogether(t *testing.T) {
	f := limit.New(64)
	var now time.Duration
	var working []limit.Stamp
	for now < 20*time.Second && f.Limit() < 2000 {
		for range f.Limit() {
			working = append(working, f.Begin(now, true))
		}
		now += 100 * ms
		for _, stamp := range working {
			f.End(now, stamp, 5000, true)
		}
		working = working[:0]
	}
	assert.GreaterOrEqual(t, f.Limit(), 2000, "each takes 100 ms, with however many")
}

func TestAFinderLowersNoLimitThatHelps(t *testing.T) {
	s := &server{Finder: limit.New(1), takes: func(int) time.Duration { return 20 * ms }}
	s.run(5*time.Second, 500)
	s.run(40*time.Second, 500)
	assert.GreaterOrEqual(t, s.most, 500)
	below := 0
	for range 4000 { // of 40 s more
		s.run(10*ms, 500)
		if s.least < 500 {
			below++
		}
	}
	assert.Less(t, below, 80, "for one moment in fifty at most, some wait for what could be done at once")
}

func TestAFinderLeavesWhatIsHardlyUsed(t *testing.T) {
	s := &server{Finder: limit.New(10000), takes: func(int) time.Duration { return 20 * ms }}
	s.run(time.Second, 100)
	assert.GreaterOrEqual(t, s.Limit(), 200)
	assert.LessOrEqual(t, s.Limit(), 230)
	assert.Equal(t, observe.LimitUnused, s.Last().Reason)
	assert.Equal(t, s.Last().To, s.Limit())
	assert.EqualValues(t, 1, s.Moves()[observe.LimitUnused])

	s.run(50*time.Second, 3)
	assert.GreaterOrEqual(t, s.Limit(), 200, "many may come again within a minute")
	s.run(80*time.Second, 3)
	assert.GreaterOrEqual(t, s.Limit(), 32, "and some at any time")
	assert.LessOrEqual(t, s.Limit(), 40)

	began := s.now
	for s.Limit() < 500 {
		s.run(ms, 500)
	}
	assert.Less(t, s.now-began, 60*20*ms, "after so many times as long as a request takes, nobody waits")
	t.Log("all of 500 work after", s.now-began)
}

// Streams that go on for hours, or requests that wait for others of the same server, may take all places.
func TestAFinderLetsMoreInWhenNothingEnds(t *testing.T) {
	s := &server{Finder: limit.New(1), takes: computing(8)}
	s.run(20*time.Second, 100)
	before := s.Limit()
	for len(s.working) < s.Limit() {
		s.working = append(s.working, request{stamp: s.Begin(s.now, true)})
	}
	again := s.Wake(s.now+50*ms, 10)
	assert.Positive(t, again)
	assert.LessOrEqual(t, s.Limit(), before+before/2, "that is no time to speak of")
	for range 3 {
		s.now += 10 * time.Second
		s.Wake(s.now, 10)
	}
	assert.GreaterOrEqual(t, s.Limit(), 2*before)
	assert.Equal(t, observe.LimitStalls, s.Last().Reason)
	s.now += 10 * time.Second
	now := s.Limit()
	s.Wake(s.now, 0)
	assert.Equal(t, now, s.Limit(), "nobody waits")
}

// Nothing could end while nothing was there.
func TestAFinderTakesNoSilenceForAStall(t *testing.T) {
	s := &server{Finder: limit.New(10000), takes: func(int) time.Duration { return 5 * ms }}
	s.run(time.Second, 3)
	before, stalls := s.Limit(), s.Moves()[observe.LimitStalls]
	for len(s.working) > 0 {
		s.now = s.working[0].ends
		s.End(s.now, s.working[0].stamp, 0, true)
		s.working = s.working[1:]
	}
	s.now += time.Hour
	for range before {
		s.Begin(s.now, false)
	}
	s.Wait(s.now)
	s.now += 90 * ms
	s.Wake(s.now, 10)
	assert.Equal(t, before, s.Limit(), "they have waited for 90 ms")
	assert.Equal(t, stalls, s.Moves()[observe.LimitStalls])
	s.now += 20 * ms
	s.Wake(s.now, 10)
	assert.GreaterOrEqual(t, s.Limit(), 2*before, "none has ended for longer than 100 ms")
	assert.Equal(t, stalls+1, s.Moves()[observe.LimitStalls])
}

// One that ends after an hour makes all seem to take long for the next thousand.
func TestADipIsShortAlthoughARequestThatTookAnHourEndsInIt(t *testing.T) {
	for range 10 {
		s := &server{Finder: limit.New(1), takes: computing(8)}
		old := s.Begin(s.now, false)
		s.now = time.Hour
		s.run(30*time.Second, 100)
		for s.Limit() >= s.Last().To {
			s.run(ms, 100)
		}
		s.End(s.now, old, 90, true)
		began := s.now
		for s.Limit() < s.Last().To && s.now < began+20*time.Second {
			s.run(ms, 100)
		}
		assert.Less(t, s.now-began, 10*time.Second)
	}
}

// A dip ends when nobody waits, so that who comes later finds the whole limit.
func TestNoDipOutlivesThoseWhoWait(t *testing.T) {
	s := &server{Finder: limit.New(1), takes: computing(8)}
	s.run(20*time.Second, 100)
	for range 1000 {
		s.run(time.Duration(rand.Int64N(int64(time.Second))), 100)
		s.run(200*ms, 1) // those who are left end
		low, last := s.Limit(), s.Last()
		if last.To != 0 {
			assert.GreaterOrEqual(t, low, last.To, "what it was moved to last")
		}
	}
}

func TestStrangeTimesHarmNoFinder(t *testing.T) {
	f := limit.New(10)
	for i := range 100000 {
		now := time.Duration(rand.Int64N(1000)) * time.Hour // back and forth
		if i%3 == 0 {
			now = 0
		}
		s := f.Begin(now, rand.IntN(3) > 0)
		f.End(now+time.Duration(rand.Int64N(2))*time.Duration(rand.Int64()), s, rand.IntN(3), true)
		assert.GreaterOrEqual(t, f.Limit(), 1)
	}
}
