package steering_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/steering"
)

func TestReadFileReportsLineNameAndValue(t *testing.T) {
	for text, says := range map[string]string{
		``:                           `line 1: unexpected end of JSON input`,
		"{\n\"mode\": \"audit\",\n}": `line 3: invalid character '}' looking for beginning of object key string`,
		"\n[]":                       `line 2: [] is not an object of settings`,
		`null`:                       `line 1: null is not an object of settings`,
		"{\n \"mode\": \"shadwo\"}":  `line 2: mode: "shadwo" is not on, shadow, audit or off`,
		"{\n\n \"mode\": 1}":         `line 3: mode: 1 is not a string`,
		`{"mode": null}`:             `line 1: mode: null is not a string`,
		"{\n \"disabled\": \"yes\"}": `line 2: disabled: "yes" is not true or false`,
		"{\n \"mdoe\": \"on\"}":      `line 2: "mdoe" is no setting; there are mode, disabled, config, routes, methods`,
		"{\"mode\":\n\"on\",\n\"mode\": \"off\"}":                         `line 3: "mode" is given twice`,
		"{\"config\": {\n \"budget_percent\": 2,\n \"burst\": \"ten\"}}":  `line 3: config: hedge: Config: burst: "ten" is not a duration like "10ms"`,
		"{\"config\": {\n \"budget_percnt\": 2}}":                         `line 2: config: hedge: Config: "budget_percnt" is no setting; there are percentile, `,
		"{\"config\": {\n \"budget_percent\": -1}}":                       `line 2: config: hedge: Config.BudgetPercent: -1 is not in [0, 400]`,
		"{\"config\": {\"budget_percent\": 2,\n \"BUDGET_PERCENT\": 50}}": `line 2: config: "BUDGET_PERCENT" is no setting, because names are in lower case`,
		"{\"config\": {\n \"burſt\": \"1s\"}}":                            `line 2: config: "burſt" is no setting, because names are in lower case`,
		"{\n \"Mode\": \"on\"}":                                           `line 2: "Mode" is no setting; there are mode, disabled, config, routes, methods`,
		"{\"config\": {\n \"max_keys\": 0}}":                              `line 2: config: hedge: Config.MaxKeys: 0 is not at least 1`,
		"{\"config\": {\"burst\": \"1s\",\n \"burst\": \"2s\"}}":          `line 2: "burst" is given twice`,
		"{\"config\": {\"burst\":\n null}}":                               `line 2: burst: null is not a value`,
		"{\"config\":\n 1}":                                               `line 2: 1 is not an object of settings`,
		"{\"routes\": {\n \"/admin/\": \"off\"}}":                         `line 2: /admin/: "off" is not true or false`,
		"{\"routes\": {\n \"get /\": false}}":                             `line 2: routes: "get /": method "get" is not in upper case`,
		"{\"routes\": {\n \"/shop.Cart/*\": false}}":                      `line 2: routes: "/shop.Cart/*": a segment "*" is for gRPC methods`,
		"{\"routes\": {\"/a/{x}\": true,\n \"/{y}/b\": false}}":           `line 2: routes: "/{y}/b": pattern "/{y}/b" (given at routes) conflicts with pattern "/a/{x}"`,
		"{\"methods\": {\n \"Get\": true}}":                               `line 2: methods: "Get" is not /pkg.Service/Method, /pkg.Service/* or /*`,
		strings.Repeat(" ", 1<<20) + "{}":                                 ` is larger than 1 MiB`,
	} {
		path := filepath.Join(t.TempDir(), "hedge.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := steering.ReadFile(path)
		assert.ErrorContains(t, err, "steering: "+path, text)
		assert.ErrorContains(t, err, says, text)
		if len(text) < 1<<20 && text != "" && json.Valid([]byte(text)) {
			f := steering.File{Mode: "on"}
			assert.ErrorContains(t, json.Unmarshal([]byte(text), &f), "steering: line ")
			assert.Equal(t, steering.File{Mode: "on"}, f)
		}
	}
	_, err := steering.ReadFile(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadFileDecodesAllSettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hedge.json")
	require.NoError(t, os.WriteFile(path, []byte(`{
		"mode": "audit", "disabled": false,
		"config": {"budget_percent": 2, "burst": "10s"},
		"routes": {"/admin/": false, "GET /search": true},
		"methods": {"/*": false, "/shop.Catalog/*": true}
	}`), 0o600))
	f, err := steering.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, steering.File{
		Mode: "audit", Config: map[string]any{"budget_percent": 2.0, "burst": "10s"},
		Routes: map[string]bool{"/admin/": false, "GET /search": true}, Methods: map[string]bool{"/*": false, "/shop.Catalog/*": true},
	}, f)
}

func TestFileAllows256Patterns(t *testing.T) {
	patterns := make(map[string]bool) // they are valid for routes and for methods
	for i := range 256 {
		patterns[fmt.Sprintf("/shop.Cart/Get%d", i)] = false
	}
	h := hedge.NewHedger()
	require.NoError(t, steering.File{Routes: patterns, Methods: patterns}.Apply(h))
	patterns["/shop.Cart/More"] = true
	assert.EqualError(t, steering.File{Routes: patterns}.Apply(h), "steering: routes: 257 patterns are more than 256")
	assert.EqualError(t, steering.File{Methods: patterns}.Apply(h), "steering: methods: 257 patterns are more than 256")
	encoded, err := json.Marshal(patterns)
	require.NoError(t, err)
	var f steering.File
	assert.EqualError(t, json.Unmarshal([]byte("{\n\"routes\":\n"+string(encoded)+"}"), &f), "steering: line 3: routes: 257 patterns are more than 256")
}

func TestFileIsTheSameAfterMarshalAndUnmarshal(t *testing.T) {
	for text, f := range map[string]steering.File{
		`{}`:                {},
		`{"mode":"on"}`:     {Mode: "on"},
		`{"disabled":true}`: {Disabled: true},
		`{"config":{"budget_percent":2.5,"burst":"10s"}}`:               {Config: map[string]any{"budget_percent": 2.5, "burst": "10s"}},
		`{"config":{"max_keys":7,"max_replay_bytes":9007199254740993}}`: {Config: map[string]any{"max_keys": 7.0, "max_replay_bytes": int64(1<<53 + 1)}},
		`{"config":{"max_replay_bytes":9223372036854775807}}`:           {Config: map[string]any{"max_replay_bytes": int64(math.MaxInt64)}},
		`{"routes":{"/admin/":false},"methods":{"/*":true}}`: {
			Routes: map[string]bool{"/admin/": false}, Methods: map[string]bool{"/*": true},
		},
	} {
		encoded, err := json.Marshal(f)
		require.NoError(t, err)
		assert.Equal(t, text, string(encoded))
		var decoded steering.File
		require.NoError(t, json.Unmarshal(encoded, &decoded))
		assert.Equal(t, f, decoded)
	}
	encoded, err := json.Marshal(&steering.File{Config: map[string]any{"burst": 10 * time.Second, "max_delay": time.Duration(hedge.Unset)}})
	require.NoError(t, err)
	assert.Equal(t, `{"config":{"burst":"10s","max_delay":"-1ns"}}`, string(encoded))
	_, err = json.Marshal(steering.File{Config: map[string]any{"burst": nil}})
	assert.ErrorContains(t, err, "steering: config: burst: null is no value")
}

func TestApplyChangesAllClientsOrNone(t *testing.T) {
	unsetVariables(t)
	first, second := hedge.NewHedger(), hedge.NewHedger(hedge.WithMaxDelay(20*ms))
	before := []hedge.Snapshot{first.Snapshot(), second.Snapshot()}
	for says, f := range map[string]steering.File{
		"steering: config: hedge: Config.MaxDelay: 20ms is not at least MinDelay, 50ms": {Mode: "shadow", Config: map[string]any{"min_delay": 50 * ms}},
		`steering: mode: "shadwo" is not on, shadow, audit or off`:                      {Mode: "shadwo"},
		"steering: config: burst: null is no value":                                     {Config: map[string]any{"burst": nil}},
	} {
		assert.EqualError(t, f.Apply(first, second), says)
		assert.Equal(t, before, []hedge.Snapshot{first.Snapshot(), second.Snapshot()})
	}
	assert.EqualError(t, steering.File{}.Apply(), "steering: there are no clients")
	for _, c := range []steering.Client{new(hedge.Transport), (*hedge.Hedger)(nil), struct{ steering.Client }{}} {
		assert.ErrorContains(t, steering.File{}.Apply(first, c), "is not a client that a constructor of package hedge has made")
	}
	assert.NoError(t, steering.File{Config: map[string]any{"max_delay": 500 * time.Microsecond, "min_delay": "100us"}}.Apply(first, second))
}

// TestRoutesOnlyForbid compares which requests are hedged with and without a file.
func TestRoutesOnlyForbid(t *testing.T) {
	unsetVariables(t)
	synctest.Test(t, func(t *testing.T) {
		rt := new(doubles.RoundTripper)
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			a, _ := hedge.AttemptFromContext(req.Context())
			takes := 10 * ms
			if a.Number == 0 && req.Header.Get("Slow") != "" {
				takes = time.Second
			}
			if err := doubles.Sleep(req.Context(), takes); err != nil {
				return nil, err
			}
			return rt.Response(req, http.StatusOK, ""), nil
		}
		newTransport := func() *hedge.Transport {
			return hedge.New(rt, hedge.WithRoute("POST /list", hedge.Policy{Hedgeable: true}), hedge.WithRoute("/off/", hedge.Policy{Off: true}),
				hedge.WithInitialDelay(20*ms), hedge.WithMaxHedges(1))
		}
		isHedged := func(routes map[string]bool, method, url string, allow bool) bool {
			tr := newTransport() // it has a budget, and sees no outage
			require.NoError(t, steering.File{Routes: routes}.Apply(tr))
			ctx := t.Context()
			if allow {
				ctx = hedge.AllowHedging(ctx)
			}
			req := doubles.NewRequest(t, ctx, method, url, nil)
			req.Header.Set("Slow", "1")
			rt.Forget()
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			doubles.ReadBody(t, resp)
			return len(rt.Sent()) == 2
		}
		for _, test := range []struct {
			routes map[string]bool
			hedged []string
		}{
			{nil, []string{"GET /", "GET //search", "GET /admin", "GET /admin%2Fx", "GET /admin/x", "GET /search", "POST /list"}},
			{map[string]bool{"/admin/": false}, []string{"GET /", "GET //search", "GET /admin", "GET /admin%2Fx", "GET /search", "POST /list"}},
			{map[string]bool{"/": false, "/search": true, "/off/": true, "POST /write": true}, []string{"GET /search"}},
			{map[string]bool{"shop.test/": false, "other.test/": true}, nil},
			{map[string]bool{"/": true}, []string{"GET /", "GET /admin", "GET /admin%2Fx", "GET /admin/x", "GET /search", "POST /list"}},
		} {
			var hedged []string
			for _, request := range []string{"GET /", "GET //search", "GET /admin", "GET /admin%2Fx", "GET /admin/x", "GET /off/x", "GET /search", "POST /list", "POST /write"} {
				method, path, _ := strings.Cut(request, " ")
				if isHedged(test.routes, method, "http://shop.test"+path, false) {
					hedged = append(hedged, request)
				}
			}
			assert.Equal(t, test.hedged, hedged, "%v", test.routes)
		}
		assert.False(t, isHedged(map[string]bool{"/admin/": false}, "GET", "http://shop.test/admin/", true), "the caller cannot allow it")
	})
}

// TestModeChangesAtRunTime changes the mode of a Hedger between calls.
func TestModeChangesAtRunTime(t *testing.T) {
	unsetVariables(t)
	synctest.Test(t, func(t *testing.T) {
		h, s := hedge.NewHedger(hedge.WithShadow()), newService()
		assert.Zero(t, s.callFor(t, h, time.Minute))
		predicted := h.Snapshot().Keys[0].Denied[hedge.DeniedShadow]
		assert.InDelta(t, 120, predicted, 40, "a twentieth of 2,400 calls is slow")
		set := func(mode string) {
			require.NoError(t, steering.File{Mode: mode}.Apply(h))
		}

		set("on")
		assert.InEpsilon(t, predicted, s.callFor(t, h, time.Minute), 0.4, "as shadow mode has predicted, without a pause to learn")
		assert.InDelta(t, 10*ms, h.Snapshot().Keys[0].P50, float64(ms))

		set("shadow")
		p90 := h.Snapshot().Keys[0].P90
		assert.InDelta(t, 10*ms, p90, float64(15*ms), "observed latencies are kept")
		assert.Zero(t, s.callFor(t, h, time.Minute))
		assert.Positive(t, h.Snapshot().Keys[0].ShadowWins)

		set("audit")
		assert.Equal(t, hedge.AuditTrying, h.Snapshot().Keys[0].Audit.Verdict)
		sent := s.callFor(t, h, 15*time.Minute)
		assert.Equal(t, hedge.AuditOn, h.Snapshot().Keys[0].Audit.Verdict)
		assert.Positive(t, sent)
		assert.Positive(t, h.Snapshot().Keys[0].Denied[hedge.DeniedAudit])

		set("off")
		before := s.attempts.Load()
		assert.Zero(t, s.callFor(t, h, time.Second))
		assert.EqualValues(t, 40, s.attempts.Load()-before)
		set("audit")
		assert.Equal(t, hedge.AuditOn, h.Snapshot().Keys[0].Audit.Verdict, "the verdict is kept while hedging is off")
		require.NoError(t, steering.File{Disabled: true}.Apply(h))
		set("audit")
		assert.Equal(t, hedge.AuditOn, h.Snapshot().Keys[0].Audit.Verdict)
		set("off")

		set("on")
		assert.Nil(t, h.Snapshot().Keys[0].Audit)
		denied := h.Snapshot().Keys[0].Denied[hedge.DeniedAudit]
		assert.Positive(t, s.callFor(t, h, time.Minute))
		assert.Equal(t, denied, h.Snapshot().Keys[0].Denied[hedge.DeniedAudit])
	})
}

func TestConcurrentChangesEndWithSettingsOfProgram(t *testing.T) {
	unsetVariables(t)
	h := hedge.NewHedger(hedge.WithMaxKeys(4))
	before := h.Snapshot().Config
	stop := make(chan struct{})
	done := make(chan struct{}, 4)
	run := func(f func(i int)) {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		}()
	}
	modes := []string{"on", "shadow", "audit", "off", ""}
	run(func(i int) {
		f := steering.File{Mode: modes[i%len(modes)], Disabled: i%7 == 0, Config: map[string]any{"budget_percent": i % 100}}
		assert.NoError(t, f.Apply(h))
	})
	run(func(i int) { assert.NoError(t, h.Update(func(c *hedge.Config) { c.MaxHedges = i % 3 })) })
	run(func(i int) { h.SetEnabled(i%2 == 0) })
	run(func(i int) {
		_, err := hedge.Do(context.Background(), h, string(rune('a'+i%8)), func(context.Context) (int, error) { return 0, nil })
		assert.NoError(t, err)
	})
	time.Sleep(200 * ms)
	close(stop)
	for range cap(done) {
		<-done
	}
	require.NoError(t, steering.File{}.Apply(h))
	h.SetEnabled(true)
	before.MaxHedges = h.Snapshot().Config.MaxHedges
	assert.Equal(t, before, h.Snapshot().Config)
	assert.True(t, h.Snapshot().Enabled)
	assert.False(t, h.Snapshot().Shadow)
}
