package hedge_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

const (
	ms   = time.Millisecond
	site = "http://catalog.test/item"
)

var errDown = errors.New("connection refused")

// usual is how long the service of these tests takes; its delay is then 1 to 2 % above.
const usual = 10 * ms

// quick answers every request after the usual time.
func quick(rt *doubles.RoundTripper) func(*http.Request, int) (*http.Response, error) {
	return after(rt, usual)
}

// after answers attempt n after the n-th duration, and all later ones after the last.
func after(rt *doubles.RoundTripper, ds ...time.Duration) func(*http.Request, int) (*http.Response, error) {
	return func(req *http.Request, n int) (*http.Response, error) {
		if err := doubles.Sleep(req.Context(), ds[min(n, len(ds)-1)]); err != nil {
			return nil, err
		}
		return rt.Response(req, 200, fmt.Sprint("answer ", n)), nil
	}
}

func get(t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	return rt.RoundTrip(request(t, t.Context(), "GET", url, nil))
}

// warm returns a Transport over rt that has learned the usual time of the hosts.
func warm(t *testing.T, rt *doubles.RoundTripper, opts ...hedge.Option) *hedge.Transport {
	t.Helper()
	script := rt.Answer
	rt.Answer = quick(rt)
	tr := hedge.New(rt, opts...)
	warmUp(t, tr)
	rt.Answer = script
	rt.Forget()
	return tr
}

func warmUp(t *testing.T, tr http.RoundTripper) {
	for range 20 {
		resp, err := get(t, tr, site)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
}

// bubble runs f in fake time with a RoundTripper, and checks that no response body was left open.
func bubble(t *testing.T, f func(t *testing.T, rt *doubles.RoundTripper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt := new(doubles.RoundTripper)
		f(t, rt)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, rt.Open(), "a response body was not closed")
	})
}

// sources returns the files that match, one after another.
func sources(t *testing.T, patterns ...string) string {
	var all strings.Builder
	for _, p := range patterns {
		names, err := filepath.Glob(p)
		require.NoError(t, err)
		for _, name := range names {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			all.Write(b)
		}
	}
	return all.String()
}

// --- over loopback ---

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // the fuzzer leaves a goroutine that waits for signals
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests of what it gets set their own
	doubles.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}

// What tests over loopback share with those of internal/livetests.
type roundTripper = doubles.RoundTripperFunc

var (
	fetch   = doubles.Fetch
	request = doubles.Request
	text    = doubles.Text
)

// recorder is an Observer that writes down what it is told, in milliseconds.
type recorder struct{ doubles.Recorder }

// take returns what was told since the last take.
func (r *recorder) take() []string { return r.Take() }

// family is a caller's context that lives on, and knows how many contexts hang on it.
type family struct {
	context.Context
	children atomic.Int64
}

func (f *family) Value(any) any { return nil }

func (f *family) AfterFunc(do func()) func() bool {
	f.children.Add(1)
	stop := context.AfterFunc(f.Context, do)
	return func() bool {
		stopped := stop()
		if stopped {
			f.children.Add(-1)
		}
		return stopped
	}
}

// parse returns a URL.
func parse(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}
