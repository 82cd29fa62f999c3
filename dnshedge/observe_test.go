package dnshedge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// witness is an observer that records its events. Upstreams have the last byte of their address as name, and times are
// in milliseconds.
type witness struct {
	observe.NopObserver
	mu     sync.Mutex
	events []string
	names  map[observe.KeyInfo]string
	last   observe.RequestResult
}

func (r *witness) add(key observe.KeyInfo, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, r.names[key]+": "+fmt.Sprintf(format, args...))
}

func (r *witness) AttemptStart(_ context.Context, key observe.KeyInfo, a observe.AttemptInfo) {
	r.add(key, "start %d", a.Number)
}

func (r *witness) AttemptDone(_ context.Context, key observe.KeyInfo, a observe.AttemptResult) {
	r.add(key, "%s %d after %d", a.Outcome, a.Number, a.Latency.Milliseconds())
}

func (r *witness) RequestDone(_ context.Context, key observe.KeyInfo, res observe.RequestResult) {
	r.add(key, "done by %d of %d after %d", res.Winner, res.Attempts, res.Latency.Milliseconds())
	r.last = res
}

func (r *witness) Denied(_ context.Context, key observe.KeyInfo, why observe.Reason) {
	r.add(key, "denied: %s", why)
}

// take returns the events since the last take.
func (r *witness) take() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// watched returns an observer of a client by the name of shop, whose upstreams are a and b.
func (l *lab) watched(c *dnshedge.Client) *witness {
	r := &witness{names: make(map[observe.KeyInfo]string)}
	for _, h := range []string{"a", "b"} {
		r.names[observe.KeyInfo{Client: "shop", Protocol: "dns", Host: l.up("udp", h).String()}] = h
	}
	c.Name, c.Observers = "shop", []observe.Observer{r}
	return r
}

func TestObserversReceiveEveryQuery(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(good, drop))
		l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.Equal(t, []string{"a: start 0", "a: won 0 after 20", "a: done by 0 of 1 after 20"}, rec.take())
		l.must(c, "y.example.")
		assert.Equal(t, []string{
			"a: start 0", "b: start 1", "b: won 1 after 20", "a: done by 1 of 2 after 120", "a: lost 0 after 120",
		}, sorted(rec.take()))
		assert.Equal(t, 100*ms, rec.last.Delay)
	})
}

// sorted moves the end of a loser to the end of the events, because its time varies relative to the end of its
// question.
func sorted(events []string) []string {
	for i := range events {
		if strings.Contains(events[i], ": lost") {
			return append(append(events[:i:i], events[i+1:]...), events[i])
		}
	}
	return events
}

// A server takes seven seconds for three queries, and two seconds for each later one. The fourth query, which begins the
// last attempt, is over TCP. It is presumed lost when the fifth is sent, but its response comes first.
func TestObserversReceiveQueriesOfLastAttempt(t *testing.T) {
	bubble(t, func(l *lab) {
		slower := after(7*time.Second, good)
		l.serve("a", about("x.example.", script(slower, slower, slower, after(2*time.Second, good)), good))
		c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "a"))
		rec := l.watched(c)
		l.learn(c)
		rec.take()
		l.must(c, "x.example.")
		assert.ElementsMatch(t, []string{
			"a: denied: disabled",
			"a: start 0", "a: lost 0 after 3440",
			"a: start 0", "a: lost 0 after 3240",
			"a: start 0", "a: lost 0 after 2840",
			"a: start 0", "a: won 0 after 2040",
			"a: start 0", "a: lost 0 after 440",
			"a: done by 0 of 1 after 3440",
		}, rec.take(), "sent after 0, 200, 600, 1400 and 3000 ms; the handshake takes 20 ms")
	})
}

// An exitingObserver ends the goroutine in which a query is reported that has lost after less than four seconds.
type exitingObserver struct{ observe.NopObserver }

func (exitingObserver) AttemptDone(_ context.Context, _ observe.KeyInfo, a observe.AttemptResult) {
	if a.Outcome == observe.Lost && a.Latency < 4*time.Second {
		runtime.Goexit()
	}
}

// Three queries of the last attempt are in flight, sent after 1.4, 3 and 6.2 s. The first one is answered, and an
// observer ends the goroutines of the two others.
func TestObserverMayEndGoroutinesOfLastAttempt(t *testing.T) {
	bubble(t, func(l *lab) {
		slower := after(9*time.Second, good)
		l.serve("a", about("x.example.", script(slower, slower, slower, after(5*time.Second, good)), good))
		c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, Hedge: dnshedge.Hedge{Off: true}}, l.up("udp", "a"))
		c.Observers, c.Logger = []observe.Observer{exitingObserver{}}, slog.New(slog.DiscardHandler)
		l.learn(c)
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 6440*ms, took)
	})
}

func TestObserversSeeFailoverAsSameAttempt(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", rcode(dns.RcodeServerFailure))
		l.serve("b", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"), l.up("udp", "b"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.Equal(t, []string{
			"a: start 0", "a: failed 0 after 20", "b: start 0", "b: won 0 after 20", "a: done by 0 of 1 after 40",
		}, rec.take())
	})
}

func TestObserversSeeRetransmissionNotAsHedge(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(drop, good))
		c := l.client(off(), l.up("udp", "a"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.EqualValues(t, 1, c.Stats().Resends)
		events := rec.take()
		assert.Equal(t, []string{"a: denied: disabled", "a: start 0", "a: start 0"}, events[:3])
		assert.Contains(t, events, "a: done by 0 of 1 after 1020")
		assert.Contains(t, events, "a: won 0 after 20")
		assert.Contains(t, events, "a: lost 0 after 1020")
		assert.Len(t, events, 6)
	})
}

func TestObserversSeeFailedQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", rcode(dns.RcodeServerFailure))
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: time.Second}}, l.up("udp", "a"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.Equal(t, []string{"a: start 0", "a: failed 0 after 20", "a: done by -1 of 1 after 20"}, rec.take())
		assert.Equal(t, time.Second, rec.last.Delay)
	})
}

func TestObserversDoNotSeeCacheHits(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.NotEmpty(t, rec.take())
		l.must(c, "x.example.")
		assert.Empty(t, rec.take())
		cache := c.Stats().Cache
		assert.Equal(t, 1, cache.Entries)
		assert.Equal(t, c.Cache.Bytes(), cache.Bytes)
		assert.EqualValues(t, 16<<20, cache.MaxBytes)
	})
}

func TestObserversSeeReasonOfDenial(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
		rec := l.watched(c)
		ask := func(ctx context.Context, m *dns.Msg) string {
			_, _, err := c.ExchangeContext(ctx, m, "")
			require.NoError(t, err)
			return rec.take()[0]
		}
		m := question("x.example.", dns.TypeA)
		assert.Equal(t, "a: start 0", ask(background, m))
		assert.Equal(t, "a: denied: nested", ask(race.HedgeContext(background, 1), m))
		assert.Equal(t, "a: denied: disabled", ask(race.WithOverrides(background, func(o *race.Overrides) { o.Never = true }), m))
		update := new(dns.Msg)
		update.SetUpdate("example.")
		assert.Equal(t, "a: denied: method", ask(background, update))
		c.SetEnabled(false)
		assert.Equal(t, "a: denied: disabled", ask(background, m))
	})
}

// lossy returns a handler that drops every twentieth query and answers the others at once.
func lossy() dnstest.Handler {
	var mu sync.Mutex
	n := 0
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%20 == 0 {
			return drop(q)
		}
		return good(q)
	}
}

func TestClientReadsEnvironment(t *testing.T) {
	for _, test := range []struct {
		variable, value string
		enabled, shadow bool
		logged          string
	}{
		{"HEDGE_MODE", "normal", true, false, ""},
		{"HEDGE_DISABLED", "0", true, false, ""},
		{"HEDGE_DISABLED", " TRUE", false, false, `WARN "dnshedge: disabled" by=HEDGE_DISABLED`},
		{"HEDGE_MODE", "off", false, false, `WARN "dnshedge: disabled" by=HEDGE_MODE`},
		{"HEDGE_MODE", "shadow", true, true, ""},
		{"HEDGE_MODE", "shadwo", true, true, `WARN "dnshedge: a variable of the environment cannot be understood, so no hedge is sent" variable=HEDGE_MODE value=shadwo`},
		{"HEDGE_BUDGET_PERCENT", "-1", true, false, `WARN "dnshedge: a variable of the environment has no effect here" variable=HEDGE_BUDGET_PERCENT value=-1`},
	} {
		t.Run(test.variable+"="+test.value, func(t *testing.T) {
			t.Setenv(test.variable, test.value)
			bubble(t, func(l *lab) {
				l.serve("a", lossy())
				l.serve("b", good)
				var logged records
				c := l.client(&dnshedge.Client{Logger: logged.logger()}, l.up("udp", "a"), l.up("udp", "b"))
				for range 100 {
					l.must(c, "x.example.")
				}
				s := c.Stats()
				assert.Equal(t, test.enabled, s.Enabled)
				assert.Equal(t, test.shadow, s.Shadow)
				assert.Equal(t, test.enabled && !test.shadow, s.Hedges > 0)
				assert.Equal(t, test.shadow, s.Upstreams[0].Denied[observe.DeniedShadow] > 0)
				assert.Equal(t, test.logged, strings.Join(logged.take(), "\n"))
			})
		})
	}
}

func TestShadowPredictsEffectOfHedging(t *testing.T) {
	measure := func(h dnshedge.Hedge) (s dnshedge.Stats, waited time.Duration) {
		bubble(t, func(l *lab) {
			l.serve("a", lossy())
			l.serve("b", lossy())
			c := l.client(&dnshedge.Client{Hedge: h}, l.up("udp", "a"), l.up("udp", "b"))
			for range 2000 {
				_, took := l.must(c, "x.example.")
				waited += took
			}
			s = c.Stats()
		})
		return s, waited
	}
	hedging, with := measure(dnshedge.Hedge{})
	shadow, without := measure(dnshedge.Hedge{Shadow: true})
	assert.Zero(t, shadow.Hedges)
	var would, wins int64
	var saved time.Duration
	for _, u := range shadow.Upstreams {
		would, wins, saved = would+u.Denied[observe.DeniedShadow], wins+u.ShadowWins, saved+u.Saved
	}
	t.Logf("hedges %d, would be %d; wins %d, would be %d; saved %v, would be %v", hedging.Hedges, would, hedging.HedgeWins, wins, without-with, saved)
	assert.InEpsilon(t, hedging.Hedges, would, 0.2)
	assert.InEpsilon(t, hedging.HedgeWins, wins, 0.2)
	assert.InEpsilon(t, (without - with).Seconds(), saved.Seconds(), 0.2)
}

// Shadow hedges and failovers share a budget. The third server answers as many questions that two servers fail as it
// does without shadow hedges.
func TestShadowHedgesCostNoFailovers(t *testing.T) {
	answered := func(h dnshedge.Hedge) (n int) {
		bubble(t, func(l *lab) {
			var asked atomic.Int64
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if strings.HasPrefix(q.Question[0].Name, "fails") {
					return rcode(dns.RcodeServerFailure)(q)
				}
				if asked.Add(1)%5 == 0 {
					return drop(q)
				}
				return good(q)
			})
			l.serve("b", rcode(dns.RcodeServerFailure))
			l.serve("c", good)
			c := l.client(&dnshedge.Client{Hedge: h}, l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c"))
			for range 500 {
				l.must(c, "x.example.")
			}
			for i := range 20 {
				if r, _ := l.must(c, fmt.Sprintf("fails%d.example.", i)); r.Rcode == dns.RcodeSuccess {
					n++
				}
			}
			if h.Shadow {
				assert.Greater(t, c.Stats().Upstreams[0].Denied[observe.DeniedShadow], int64(20), "would be sent")
			}
		})
		return n
	}
	off := answered(dnshedge.Hedge{Off: true})
	assert.Positive(t, off)
	assert.Equal(t, off, answered(dnshedge.Hedge{BudgetPercent: dnshedge.NoBudget}))
	assert.GreaterOrEqual(t, answered(dnshedge.Hedge{Shadow: true}), off)
}

func TestShadowOnlyCountsFixedHedges(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", script(drop, good))
		c := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: 50 * ms, Shadow: true}}, l.up("udp", "a"))
		rec := l.watched(c)
		l.must(c, "x.example.")
		assert.Zero(t, c.Stats().Hedges)
		assert.Contains(t, rec.take(), "a: denied: shadow")
	})
}

func TestSetEnabledAppliesToNextQuestion(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", lossy())
		l.serve("b", good)
		var logged records
		c := l.client(&dnshedge.Client{Logger: logged.logger(), Name: "shop"}, l.up("udp", "a"), l.up("udp", "b"))
		hedges := func() int64 {
			before := c.Stats().Hedges
			for range 100 {
				l.must(c, "x.example.")
			}
			return c.Stats().Hedges - before
		}
		assert.NotZero(t, hedges())
		for range 2 {
			c.SetEnabled(false)
		}
		assert.Zero(t, hedges())
		assert.False(t, c.Stats().Enabled)
		c.SetEnabled(true)
		assert.NotZero(t, hedges())
		assert.Equal(t, []string{
			`WARN "dnshedge: disabled" client=shop by=SetEnabled`, `INFO "dnshedge: enabled" client=shop by=SetEnabled`,
		}, logged.take())
	})
}

func TestClientStateShowsFirstServers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		l.serve("b", good)
		r := new(doubles.Recorder)
		c := l.client(&dnshedge.Client{Name: "shop", Order: dnshedge.OrderStrict, Observers: []observe.Observer{r}}, l.up("udp", "a"), l.up("udp", "b"))
		fixed := l.client(&dnshedge.Client{Hedge: dnshedge.Hedge{Fixed: 30 * ms}, Observers: []observe.Observer{r}}, l.up("udp", "a"))
		l.must(c, "x.example.")
		a := observe.KeyInfo{Client: "shop", Protocol: "dns", Host: l.up("udp", "a").String()}
		assert.Equal(t, []observe.KeyState{{KeyInfo: a, Delay: 100 * ms, Tokens: 10.075, Share: 0.05}}, r.KeyStates())
		require.NoError(t, c.Close())
		assert.Empty(t, r.KeyStates())
		l.must(fixed, "x.example.")
		a.Client = ""
		assert.Equal(t, []observe.KeyState{{KeyInfo: a, Delay: 30 * ms}}, r.KeyStates())
	})
}

func TestClientStateDoesNotKeepClientAlive(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "127.0.0.1:1"}}}
	s := new(doubles.ClientStates)
	c.Observers = []observe.Observer{s}
	require.NoError(t, c.Validate())
	require.Len(t, s.All, 1)
	_, exists := s.All[0]()
	require.True(t, exists)
	runtime.KeepAlive(c)
	require.Eventually(t, func() bool {
		runtime.GC()
		_, exists := s.All[0]()
		return !exists
	}, 20*time.Second, ms)
}

// angry is an observer that panics in each method.
type angry struct{}

func (angry) AttemptStart(context.Context, observe.KeyInfo, observe.AttemptInfo)  { panic("start") }
func (angry) AttemptDone(context.Context, observe.KeyInfo, observe.AttemptResult) { panic("attempt") }
func (angry) RequestDone(context.Context, observe.KeyInfo, observe.RequestResult) { panic("request") }
func (angry) Denied(context.Context, observe.KeyInfo, observe.Reason)             { panic("denied") }
func (angry) ClientCreated(observe.ClientState)                                   { panic("created") }
func (angry) Limited(context.Context, string, observe.LimiterResult)              { panic("limited") }
func (angry) EndpointEvent(observe.KeyInfo, observe.EndpointEvent)                { panic("endpoint") }
func (angry) Audited(observe.KeyInfo, observe.Audit)                              { panic("audited") }

func TestClientRecoversPanicOfObserver(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", drop)
		l.serve("b", good)
		var logged records
		c := l.client(&dnshedge.Client{Logger: logged.logger(), Observers: []observe.Observer{angry{}}}, l.up("udp", "a"), l.up("udp", "b"))
		l.must(c, "x.example.")
		synctest.Wait()
		assert.EqualValues(t, 6, c.Stats().ObserverPanics) // the client, two attempts, and a question
		told := logged.take()
		require.Len(t, told, 1)
		assert.Contains(t, told[0], `ERROR "dnshedge: an observer panicked; later panics are only counted" observer=dnshedge_test.angry panic=created stack=`)
	})
}

// broken is a log handler that panics.
type broken struct{ slog.Handler }

func (broken) Handle(context.Context, slog.Record) error { panic("disk full") }

func (h broken) WithAttrs([]slog.Attr) slog.Handler { return h }

func TestClientRecoversPanicOfLogger(t *testing.T) {
	t.Setenv("HEDGE_MODE", "off")
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{Logger: slog.New(broken{slog.NewTextHandler(io.Discard, nil)})}, l.up("udp", "a"))
		l.must(c, "x.example.")
		c.SetEnabled(true)
		l.must(c, "x.example.")
		synctest.Wait()
		assert.EqualValues(t, 2, c.Stats().ObserverPanics)
	})
}

func TestLoggerLogsSilentUpstream(t *testing.T) {
	bubble(t, func(l *lab) {
		var down atomic.Bool
		l.serve("a", unless(&down))
		var logged records
		c := l.client(&dnshedge.Client{Logger: logged.logger()}, l.up("udp", "a"))
		l.learn(c)
		assert.Empty(t, logged.take())
		host := "host=" + l.up("udp", "a").String()
		down.Store(true)
		for range 5 {
			_, _, err := l.ask(c, "x.example.")
			require.Error(t, err)
		}
		assert.True(t, c.Stats().Upstreams[0].Silent)
		assert.Equal(t, 1, strings.Count(strings.Join(logged.take(), "\n"), `WARN "dnshedge: upstream is silent" `+host))
		down.Store(false)
		time.Sleep(time.Minute)
		l.learn(c)
		assert.False(t, c.Stats().Upstreams[0].Silent)
		assert.Equal(t, 1, strings.Count(strings.Join(logged.take(), "\n"), `INFO "dnshedge: upstream answers again" `+host))
	})
}

func TestLoggerLogsExhaustedBudgetUntilHalfFull(t *testing.T) {
	bubble(t, func(l *lab) {
		var queries atomic.Int64
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if n := queries.Add(1); n > 200 && n < 1200 && n%8 == 0 {
				return drop(q)
			}
			return good(q)
		})
		var logged records
		c := l.client(&dnshedge.Client{Logger: logged.logger()}, l.up("udp", "a"))
		for range 2000 {
			l.must(c, "x.example.")
			time.Sleep(100 * ms)
		}
		told := logged.take()
		host := "host=" + l.up("udp", "a").String()
		assert.Contains(t, told, `INFO "dnshedge: budget exhausted" `+host)
		assert.Equal(t, `INFO "dnshedge: budget refilled" `+host, told[len(told)-1])
		assert.NotZero(t, c.Stats().Upstreams[0].Denied[observe.DeniedBudget])
	})
}

func TestLoggerLogsImport(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
		l.must(c, "x.example.")
		var exported bytes.Buffer
		require.NoError(t, c.Export(&exported))
		var logged records
		client := func(host string) *dnshedge.Client {
			return l.client(&dnshedge.Client{Logger: logged.logger(), Cache: new(dnshedge.Cache)}, l.up("udp", host))
		}
		same, other := client("a"), client("b")
		for _, row := range []struct {
			c    *dnshedge.Client
			want string
		}{
			{same, "upstreams=1 answers=1"},
			{same, "upstreams=1 answers=0"}, // the Cache has the answer already
			{other, "upstreams=0 answers=0"},
		} {
			require.NoError(t, row.c.Import(bytes.NewReader(exported.Bytes())))
			assert.Equal(t, []string{`INFO "dnshedge: imported what was learned" ` + row.want}, logged.take())
			time.Sleep(10 * time.Second) // the same message is logged at most once in ten seconds
		}
	})
}

func TestObserversMustNotBeNil(t *testing.T) {
	c := &dnshedge.Client{Observers: []observe.Observer{observe.NopObserver{}, nil}}
	_, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
	assert.EqualError(t, err, "dnshedge: Client.Observers[1] is nil")
	c.SetEnabled(false) // does nothing
}

func TestStatsIdentifySharedCache(t *testing.T) {
	shared := new(dnshedge.Cache)
	id := func(cache *dnshedge.Cache) uint64 {
		c := &dnshedge.Client{Cache: cache}
		assert.False(t, c.Stats().Closed)
		require.NoError(t, c.Close())
		assert.True(t, c.Stats().Closed)
		return c.Stats().Cache.ID
	}
	first := id(shared)
	assert.NotZero(t, first)
	assert.Equal(t, first, id(shared))
	assert.NotEqual(t, first, id(new(dnshedge.Cache)))
}

func TestStatsHaveJSONNames(t *testing.T) {
	b, err := json.Marshal(dnshedge.Stats{Upstreams: []dnshedge.UpstreamStats{{}}, Cache: new(observe.DNSCacheStats)})
	require.NoError(t, err)
	assert.NotRegexp(t, `"[A-Z]`, string(b))
}

// records returns the log records, without times and protocols.
type records struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *records) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *records) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *records) take() (lines []string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		lines = append(lines, regexp.MustCompile(`^time=\S+ level=(\w+) msg=(".*?") protocol=dns`).ReplaceAllString(strings.TrimSpace(line), "$1 $2"))
	}
	l.b.Reset()
	return lines
}

func TestBlockingLoggerDelaysNoAnswer(t *testing.T) {
	for _, network := range []string{"udp", "tcp", "https"} {
		bubble(t, func(l *lab) {
			var down atomic.Bool
			l.serve("a", unless(&down))
			var told []string
			release := make(chan bool)
			c := l.client(&dnshedge.Client{Logger: handler(func(r slog.Record) {
				<-release
				told = append(told, r.Message)
			})}, l.up(network, "a"))
			l.learn(c)
			down.Store(true)
			for range 5 {
				_, took, err := l.ask(c, "x.example.")
				require.Error(t, err, network)
				assert.LessOrEqual(t, took, 5*time.Second, network)
			}
			down.Store(false)
			_, took := l.must(c, "x.example.")
			assert.LessOrEqual(t, took, time.Second, network)
			synctest.Wait() // until the goroutine that reads the connection has recorded the response
			c.SetEnabled(false)
			close(release)
			c.Close() // waits until all events are reported
			assert.Equal(t, []string{"dnshedge: upstream is silent", "dnshedge: upstream answers again", "dnshedge: disabled"}, told, network)
		})
	}
}

func TestLoggerMayAskItsClient(t *testing.T) {
	t.Setenv("HEDGE_DISABLED", "1") // which is logged when the Client is first used
	bubble(t, func(l *lab) {
		var down atomic.Bool
		l.serve("a", unless(&down))
		c := &dnshedge.Client{Cache: new(dnshedge.Cache)}
		var told []string
		c.Logger = handler(func(r slog.Record) {
			_, _, _ = c.Exchange(question("x.example.", dns.TypeA), "")
			told = append(told, r.Message)
		})
		l.client(c, l.up("udp", "a"))
		down.Store(true)
		for range 5 {
			_, _, err := l.ask(c, "x.example.")
			require.Error(t, err)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		l.must(c, "x.example.")
		c.Close()
		assert.Equal(t, []string{"dnshedge: disabled", "dnshedge: upstream is silent", "dnshedge: upstream answers again"}, told)
	})
}

// unless returns a handler that answers all queries while down is false.
func unless(down *atomic.Bool) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		if down.Load() {
			return drop(q)
		}
		return good(q)
	}
}

// handled is a log handler that calls a function.
type handled struct {
	slog.Handler
	f func(slog.Record)
}

func (h handled) Handle(_ context.Context, r slog.Record) error {
	h.f(r)
	return nil
}

func (h handled) WithAttrs([]slog.Attr) slog.Handler { return h }

// handler returns a logger whose handler is f.
func handler(f func(slog.Record)) *slog.Logger {
	return slog.New(handled{slog.NewTextHandler(io.Discard, nil), f})
}
