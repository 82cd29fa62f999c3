package hedgetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgetest"
)

// bank is a server with safe and unsafe operations. Each takes some time, so that two concurrent ones overlap.
type bank struct {
	mu      sync.Mutex // guards the fields below
	rows    map[string]string
	queue   []string
	keys    map[string]string // what was answered, by idempotency key; "" while it is not known
	tickets int
}

func newBank() *bank {
	return &bank{rows: map[string]string{"a": "1"}, queue: []string{"x", "x", "x", "x"}, keys: make(map[string]string)}
}

// state returns the data of the bank without a copy.
func (b *bank) state() any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &struct {
		rows  map[string]string
		queue *[]string
	}{b.rows, &b.queue}
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/read":
		time.Sleep(time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		fmt.Fprint(w, b.rows["a"])
	case "/put":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.rows["a"] = string(body)
	case "/add":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.rows["a"] += "1"
	case "/take":
		b.mu.Lock()
		defer b.mu.Unlock()
		fmt.Fprint(w, b.queue[0])
		b.queue = b.queue[1:]
	case "/new":
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tickets++
		w.Header().Set("Location", fmt.Sprint("/tickets/", b.tickets))
	case "/once":
		b.once(w, r.Header.Get("Idempotency-Key"))
	case "/fails":
		panic(http.ErrAbortHandler)
	}
}

// once refuses a key while it works on it, and says the same again later, as the draft of the header has it.
func (b *bank) once(w http.ResponseWriter, key string) {
	b.mu.Lock()
	before, known := b.keys[key]
	if !known {
		b.keys[key] = ""
	}
	b.mu.Unlock()
	switch {
	case known && before == "":
		w.WriteHeader(http.StatusConflict)
		return
	case !known:
		time.Sleep(time.Second)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[key] = "done"
	b.rows[key] = "done"
	fmt.Fprint(w, "done")
}

func TestTwiceFailsOnUnsafeCalls(t *testing.T) {
	for path, want := range map[string]string{
		"/read":  "",
		"/put":   "",
		"/add":   `it changes the state` + "\n" + `from &{rows:map["a":"111"] queue:&["x" "x" "x" "x"]}` + "\n" + `to   &{rows:map["a":"1111"] queue:&["x" "x" "x" "x"]}`,
		"/take":  "it changes the state",
		"/new":   "of two at once, the answers differ: Location",
		"/once":  "of two at once, the answers differ: status",
		"/fails": "",
	} {
		for protocol, start := range protocols {
			t.Run(protocol+path, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBank()
					server, f := start(t, b), &failures{TB: t}
					rt := hedgetest.Twice(f, server.Transport(), b.state)
					req, err := http.NewRequestWithContext(t.Context(), "POST", "http://shop.test"+path, strings.NewReader("2"))
					require.NoError(t, err)
					req.Header.Set("Idempotency-Key", "k")
					resp, err := rt.RoundTrip(req)
					if path == "/fails" {
						assert.Error(t, err)
					} else {
						require.NoError(t, err)
						assert.Same(t, req, resp.Request)
						resp.Body.Close()
					}
					if want == "" {
						assert.Empty(t, f.all)
					} else {
						assert.Contains(t, strings.Join(f.all, "\n"), "hedgetest: POST http://shop.test"+path+" is not safe to hedge: ")
						assert.Contains(t, strings.Join(f.all, "\n"), want)
					}
					assert.Equal(t, 3, server.Attempts())
				})
			})
		}
	}
}

func TestTwiceReturnsFirstResponse(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, _ *atomic.Int64) {
		server.At(1, hedgetest.Fault{Reset: true, After: 4})
		server.At(2, hedgetest.Fault{Reset: true, After: 4})
		f := &failures{TB: t}
		resp, body, err := send(t, hedgetest.Twice(f, server.Transport(), nil), "GET", "/", "")
		assert.Error(t, err, "what the body ends with")
		assert.Equal(t, "0123", body)
		assert.Equal(t, 200, resp.StatusCode)
		require.Len(t, f.all, 1)
		assert.Contains(t, f.all[0], "the answer differs when it is sent once more: one is the error ")

		_, body, err = send(t, hedgetest.Twice(t, server.Transport(), nil), "GET", "/", "")
		assert.NoError(t, err)
		assert.Equal(t, "0123456789", body)
	})
}

// TestTwiceSendsRequestsWithoutBody covers http.NoBody, which net/http sends differently from an empty body.
func TestTwiceSendsRequestsWithoutBody(t *testing.T) {
	for _, start := range protocols {
		synctest.Test(t, func(t *testing.T) {
			server := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, r.ContentLength, r.TransferEncoding)
			}))
			for _, body := range []io.Reader{nil, http.NoBody, strings.NewReader("")} {
				req, err := http.NewRequestWithContext(t.Context(), "PUT", "http://shop.test/", body)
				require.NoError(t, err)
				resp, err := hedgetest.Twice(t, server.Transport(), nil).RoundTrip(req)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "0 []", string(got))
			}
		})
	}
}

// level is a number whose String does not depend on its value.
type level int

func (level) String() string { return "a level" }

// secret is a string whose String hides it.
type secret []byte

func (secret) String() string { return "***" }

// TestTwiceComparesStatesWithEqualStrings has states whose own texts do not change with them.
func TestTwiceComparesStatesWithEqualStrings(t *testing.T) {
	for _, state := range []any{new(level), &struct{ At level }{}, map[string]*level{"a": new(level)}, secret("a"), &struct{ key secret }{secret("a")}} {
		f, calls := &failures{TB: t}, 0
		call := hedgetest.TwiceFunc(f, func(context.Context) (int, error) { return 0, nil }, func() any {
			if calls++; calls == 2 {
				switch s := state.(type) {
				case *level:
					*s = 1
				case *struct{ At level }:
					s.At = 1
				case map[string]*level:
					*s["a"] = 1
				case secret:
					s[0] = 'b'
				case *struct{ key secret }:
					s.key[0] = 'b'
				}
			}
			return state
		})
		_, err := call(t.Context())
		require.NoError(t, err)
		assert.Len(t, f.all, 1, "%T", state)
	}
}

// handmade is a RoundTripper that answers without a Body.
type handmade struct{}

func (handmade) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 204}, nil
}

func TestTwiceAcceptsResponseWithoutBody(t *testing.T) {
	resp, err := (&http.Client{Transport: hedgetest.Twice(t, handmade{}, nil)}).Get("http://shop.test/")
	require.NoError(t, err)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Empty(t, got)
}

func TestTwiceDetectsDifferentBodies(t *testing.T) {
	n := make(chan int, 3)
	for i := range 3 {
		n <- i
	}
	rt := roundTripper(func(*http.Request) (*http.Response, error) {
		body := strings.Repeat("a", 300)
		if <-n == 2 {
			body = "b"
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
	})
	f := &failures{TB: t}
	_, _, err := send(t, hedgetest.Twice(f, rt, nil), "GET", "/", "")
	require.NoError(t, err)
	require.Len(t, f.all, 1)
	assert.Contains(t, f.all[0], `body "`+strings.Repeat("a", 200)+`"… and "b"`)

	f = new(failures)
	_, _, err = send(t, hedgetest.Twice(f, roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil }), nil), "GET", "/", "")
	assert.ErrorContains(t, err, "returned a nil *Response with a nil error")
}

// TestTwiceSerializesCalls has many calls at once, none of which may see the state of another.
func TestTwiceSerializesCalls(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, handled *atomic.Int64) {
		rt := hedgetest.Twice(t, server.Transport(), func() any { return (handled.Load() + 1) / 3 })
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, _, err := send(t, rt, "PUT", "/", "x")
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.EqualValues(t, 60, handled.Load())
	})
}

func TestTwiceFuncFailsOnUnsafeFunctions(t *testing.T) {
	var faults hedgetest.Faults
	state := 0
	read := hedgetest.TwiceFunc(t, func(context.Context) (string, error) {
		faults.Arrive()
		return "row", nil
	}, func() any { return &state })
	v, err := read(t.Context())
	assert.NoError(t, err)
	assert.Equal(t, "row", v)
	assert.Equal(t, 3, faults.Attempts())

	var mu sync.Mutex
	f := &failures{TB: t}
	count := hedgetest.TwiceFunc(f, func(context.Context) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		state++
		return state, nil
	}, func() any { return &state })
	_, err = count(t.Context())
	assert.NoError(t, err)
	require.Len(t, f.all, 3)
	assert.Contains(t, f.all[2], "it changes the state\nfrom &2\nto   &3")

	f = &failures{TB: t}
	fails := hedgetest.TwiceFunc(f, func(context.Context) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		if state++; state == 6 {
			return 0, errors.New("gone")
		}
		return 0, nil
	}, nil)
	_, err = fails(t.Context())
	assert.NoError(t, err)
	require.Len(t, f.all, 1)
	assert.Contains(t, f.all[0], "one is the error gone")
}

func TestRecorderChecksOnlyNewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := hedgetest.NewServer(t, nil)
		var calls hedgetest.Recorder
		f := &failures{TB: t}
		calls.SentOnce(f)
		calls.Hedged(f, 1)
		require.Len(t, f.all, 2)
		assert.Equal(t, "hedgetest: no call has ended since the last check", f.all[0])

		rt := recorded(server, &calls)
		hedgetest.Warm(t, rt, time.Millisecond, "shop.test")
		server.At(2, hedgetest.Fault{Delay: time.Second})
		for range 2 {
			_, _, err := send(t, rt, "GET", "/", "")
			require.NoError(t, err)
		}
		f = &failures{TB: t}
		calls.SentOnce(f)
		assert.Equal(t, []string{"hedgetest: call 2 of 2 was sent 2 times and not 1"}, f.all)

		server.At(1, hedgetest.Fault{Delay: time.Second})
		_, _, err := send(t, rt, "POST", "/", "")
		require.NoError(t, err)
		f = &failures{TB: t}
		calls.Hedged(f, 1)
		assert.Equal(t, []string{`hedgetest: call 1 of 1 was sent 1 times and not 2; hedges were denied for "method"`}, f.all)
		assert.Len(t, calls.Calls(), 3)
	})
}

// TestTwiceComparesStatesByContent has states that are the same value with another content.
func TestTwiceComparesStatesByContent(t *testing.T) {
	type node struct {
		next *node
		name string
		at   time.Time
		Set  map[any]bool
		raw  []byte
	}
	n := &node{name: "a", at: time.Unix(1, 0), Set: map[any]bool{1: true, "one": true}, raw: []byte("x")}
	n.next = n
	for what, change := range map[string]func(){
		"":        func() {},
		"name":    func() { n.next.name = "b" },
		"time":    func() { n.at = n.at.Add(1) },
		"entry":   func() { n.Set[2] = true },
		"value":   func() { n.Set["one"] = false },
		"byte":    func() { n.raw[0] = 'y' },
		"pointer": func() { n.next = nil },
	} {
		f := &failures{TB: t}
		was := *n
		was.Set, was.raw = maps.Clone(n.Set), append([]byte(nil), n.raw...)
		calls := 0
		var mu sync.Mutex
		call := hedgetest.TwiceFunc(f, func(context.Context) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls == 3 {
				change()
			}
			return 0, nil
		}, func() any { return n })
		_, err := call(t.Context())
		require.NoError(t, err)
		assert.Equal(t, what != "", len(f.all) == 1, "%s: %v", what, f.all)
		*n = was
	}
}

// TestTwiceSerializesSlowCalls makes concurrent calls to servers that wait in fake time, which only advances while all
// goroutines of the bubble wait.
func TestTwiceSerializesSlowCalls(t *testing.T) {
	each(t, func(t *testing.T, server *hedgetest.Server, _ *atomic.Int64) {
		const calls = 4
		for n := range 3 * calls {
			server.At(1+n, hedgetest.Fault{Delay: time.Second})
		}
		rt := hedgetest.Twice(t, server.Transport(), nil)
		begun := time.Now()
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				_, _, err := send(t, rt, "GET", "/", "")
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.Equal(t, calls*2*time.Second, time.Since(begun), "two at once, and then one")
	})
}

// TestTwiceReadsCyclicState has states that lead back to themselves by a map and by a slice.
func TestTwiceReadsCyclicState(t *testing.T) {
	names, list := map[string]any{"a": 1}, []any{1, nil}
	names["names"], list[1] = names, list
	call := hedgetest.TwiceFunc(t, func(context.Context) (int, error) { return 0, nil }, func() any { return []any{names, list, map[int]int(nil)} })
	_, err := call(t.Context())
	assert.NoError(t, err)
}

func TestTwiceFailuresOmitSecretsInURL(t *testing.T) {
	f := &failures{TB: t}
	calls := new(atomic.Int64)
	rt := roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200 + int(calls.Add(1))}, nil
	})
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://reader:hunter2@shop.test/a?signature=hunter2", nil)
	require.NoError(t, err)
	_, err = hedgetest.Twice(f, rt, nil).RoundTrip(req)
	require.NoError(t, err)
	require.NotEmpty(t, f.all)
	assert.NotContains(t, strings.Join(f.all, "\n"), "hunter2")
	assert.Contains(t, f.all[0], "shop.test/a?xxxxx is not safe to hedge")
}
