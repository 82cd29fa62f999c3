package livetests_test

import (
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestPatternAndFilesOfAFormAreSeenBeforeALimiter(t *testing.T) {
	var form bytes.Buffer
	writer := multipart.NewWriter(&form)
	part, err := writer.CreateFormFile("file", "name")
	require.NoError(t, err)
	_, err = io.WriteString(part, strings.Repeat("x", 1<<16))
	require.NoError(t, err)
	require.NoError(t, writer.Close())

	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /form/{id}", func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
	})
	var pattern string
	var before int
	h := hedge.NewLimiter(1).Handler(mux)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r)
		pattern = r.Pattern
		files, _ := os.ReadDir(dir)
		before = len(files)
	}))
	resp, err := s.Client().Post(s.URL+"/form/7", writer.FormDataContentType(), &form)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	s.Close()
	assert.Equal(t, "POST /form/{id}", pattern)
	assert.Equal(t, 1, before)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, files, "net/http removes them after the request")
}

// queue is a server of one place, which a request holds until it is told to go.
type queue struct {
	*server
	limit *hedge.Limiter
	begun atomic.Int64
	goOn  chan struct{}
}

func newQueue(t *testing.T, protocol string) *queue {
	q := &queue{limit: hedge.NewLimiter(1), goOn: make(chan struct{})}
	q.server = serve(t, protocol, q.limit.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		q.begun.Add(1)
		<-q.goOn
	})).ServeHTTP)
	t.Cleanup(func() { // before the server is closed, which waits for the request
		select {
		case <-q.goOn:
		default:
			close(q.goOn)
		}
	})
	return q
}

func (q *queue) holds(t *testing.T, what func(hedge.LimiterSnapshot) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return what(q.limit.Snapshot()) }, 10*time.Second, ms)
}

// occupied sends a request that takes the place, and returns how that will end.
func (q *queue) occupied(t *testing.T, rt http.RoundTripper) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := fetch(t.Context(), rt, q.URL)
		ended <- err
	}()
	q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Working == 1 })
	return ended
}

func TestServerNoticesThatAWaitingCallerHasGone(t *testing.T) {
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			q := newQueue(t, protocol)
			rt := base(t, q.server)
			first := q.occupied(t, rt)
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				_, err := fetch(ctx, rt, q.URL)
				gone <- err
			}()
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Waiting == 1 })
			cancel()
			if err := <-gone; err != nil { // over TLS the server's 503 may arrive before the client has closed the connection
				require.ErrorIs(t, err, context.Canceled)
			}
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Left == 1 && s.Waiting == 0 })
			close(q.goOn)
			require.NoError(t, <-first)
			assert.EqualValues(t, 1, q.begun.Load())
		})
	}
}

// TestBodyThatNobodyReadHidesOverHTTP1ThatItsCallerHasGone says what net/http does: it
// watches a connection once the request's body is read. A Limiter does not read this one: it is too long.
func TestBodyThatNobodyReadHidesOverHTTP1ThatItsCallerHasGone(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			q := newQueue(t, protocol)
			rt := base(t, q.server)
			first := q.occupied(t, rt)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				resp, err := rt.RoundTrip(request(t, ctx, "POST", q.URL, strings.NewReader(strings.Repeat("b", 65537))))
				if err == nil {
					resp.Body.Close()
				}
			}()
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Waiting == 1 })
			cancel()
			if protocol == "HTTP/2" {
				q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Left == 1 })
			}
			close(q.goOn)
			require.NoError(t, <-first)
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Working+s.Waiting == 0 })
			assert.EqualValues(t, map[string]int64{"HTTP/1.1": 2, "HTTP/2": 1}[protocol], q.begun.Load())
		})
	}
}

func TestServerNoticesThatTheWaitingCallerOfASmallBodyHasGone(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			q := newQueue(t, protocol)
			rt := base(t, q.server)
			first := q.occupied(t, rt)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				resp, err := rt.RoundTrip(request(t, ctx, "POST", q.URL, strings.NewReader("body")))
				if err == nil {
					resp.Body.Close()
				}
			}()
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Waiting == 1 })
			cancel()
			q.holds(t, func(s hedge.LimiterSnapshot) bool { return s.Left == 1 && s.Waiting == 0 })
			close(q.goOn)
			require.NoError(t, <-first)
			assert.EqualValues(t, 1, q.begun.Load())
		})
	}
}

func TestLoserBehindALimiterIsCancelledOverHTTP1(t *testing.T) {
	for _, limited := range []bool{true, false} {
		t.Run(map[bool]string{true: "behind a Limiter", false: "without"}[limited], func(t *testing.T) {
			gone, hang := make(chan struct{}), make(chan struct{})
			h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Slow") != "" {
					select {
					case <-r.Context().Done():
						close(gone)
					case <-hang:
					}
					return
				}
				_, _ = io.WriteString(w, "answer")
			}))
			if limited {
				h = hedge.NewLimiter(100).Handler(h)
			}
			s := serve(t, "HTTP/1.1", h.ServeHTTP)
			below := base(t, s)
			slowly := roundTripper(func(req *http.Request) (*http.Response, error) {
				if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Number == 0 && req.URL.Path == "/slow" {
					req = req.Clone(req.Context())
					req.Header.Set("Slow", "yes")
				}
				return below.RoundTrip(req)
			})
			tr := hedge.New(slowly, hedge.WithLinger(time.Hour), hedge.WithMaxHedges(1))
			teach(t, tr, s.URL)
			// Later than a connection can be closed that was in use just before.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // without a hedge nothing else ends
			defer cancel()
			got, err := fetch(hedge.WithDelay(ctx, 150*ms), tr, s.URL+"/slow")
			require.NoError(t, err)
			assert.Equal(t, "answer", got)
			if limited {
				select {
				case <-gone:
				case <-time.After(10 * time.Second):
					t.Error("the loser was not cancelled")
				}
			} else {
				select {
				case <-gone:
					t.Error("the loser was cancelled")
				case <-time.After(300 * ms):
				}
			}
			close(hang)
		})
	}
}
