package livetests_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// A finding is what a handler finds out about a body, line by line.
type finding struct{ lines []string }

func (f *finding) read(what string, body io.Reader) {
	b, err := io.ReadAll(body)
	f.say("%s: %d bytes, %v", what, len(b), err)
}

func (f *finding) say(format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}

// uploads are what handlers do with a body of 5000 bytes, and those before a Limiter afterwards.
var uploads = map[string]struct {
	handler func(f *finding, w http.ResponseWriter, r *http.Request)
	before  func(w http.ResponseWriter, r *http.Request)
	after   func(f *finding, r *http.Request)
}{
	"all of it, and again": {handler: func(f *finding, _ http.ResponseWriter, r *http.Request) {
		f.say("length %d, %v, %v", r.ContentLength, r.TransferEncoding, r.Close)
		f.read("first", r.Body)
		f.say("trailer %v", r.Trailer)
		f.read("second", r.Body)
		f.say("close: %v, %v", r.Body.Close(), r.Body.Close())
		_, err := r.Body.Read(make([]byte, 9))
		f.say("after Close: %v", err)
	}},
	"in pieces": {handler: func(f *finding, _ http.ResponseWriter, r *http.Request) {
		b := make([]byte, 999)
		for range 5 {
			n, err := io.ReadFull(r.Body, b)
			f.say("%d, %v", n, err)
		}
		n, err := io.ReadFull(r.Body, b)
		f.say("%d, %v", n, err)
	}},
	"after Close": {handler: func(f *finding, _ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 9))
		f.say("close: %v", r.Body.Close())
		n, err := r.Body.Read(make([]byte, 9))
		f.say("%d, fails %v", n, err != nil && err != io.EOF)
		if r.ProtoMajor == 1 {
			f.say("%v", err)
		}
	}},
	"after the answer has begun": {handler: func(f *finding, w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 9))
		_, _ = io.WriteString(w, "answer")
		f.say("flush: %v", http.NewResponseController(w).Flush())
		f.read("rest", r.Body)
	}},
	"after the answer has begun, in both directions at once": {handler: func(f *finding, w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		f.say("full duplex: %v", c.EnableFullDuplex())
		_, _ = io.WriteString(w, "answer")
		f.say("flush: %v", c.Flush())
		f.read("all", r.Body)
	}},
	"after a deadline was set": {handler: func(f *finding, w http.ResponseWriter, r *http.Request) {
		f.say("deadline: %v", http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Hour)))
		f.read("all", r.Body)
	}},
	"bounded by the handler": {handler: func(f *finding, w http.ResponseWriter, r *http.Request) {
		f.read("part", http.MaxBytesReader(w, r.Body, 100))
		w.Header().Set("Connection", "close") // http.MaxBytesReader sets it only where the body was not read ahead
	}},
	"bounded before the Limiter": {
		before: func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 100) },
		handler: func(f *finding, _ http.ResponseWriter, r *http.Request) {
			f.read("part", r.Body)
			f.read("again", r.Body)
		},
	},
	"the rest, after the handler": {
		handler: func(_ *finding, _ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 9)) },
		after:   func(f *finding, r *http.Request) { f.read("rest", r.Body) },
	},
	"after the handler has closed it": {
		handler: func(_ *finding, _ http.ResponseWriter, r *http.Request) { _ = r.Body.Close() },
		after: func(f *finding, r *http.Request) {
			n, err := r.Body.Read(make([]byte, 9))
			f.say("%d, fails %v", n, err != nil && err != io.EOF)
		},
	},
}

// TestHandlersBehindALimiterSeeOfBodiesWhatTheyWouldSeeWithoutOne asks the same of servers with and without a Limiter.
func TestHandlersBehindALimiterSeeOfBodiesWhatTheyWouldSeeWithoutOne(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for name, u := range uploads {
			t.Run(protocol+" "+name, func(t *testing.T) {
				found := func(limit func(http.Handler) http.Handler) (lines []string) {
					f := new(finding)
					h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { u.handler(f, w, r) }))
					answered := make(chan struct{})
					s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
						defer close(answered)
						if u.before != nil {
							u.before(w, r)
						}
						h.ServeHTTP(w, r)
						if u.after != nil {
							u.after(f, r)
						}
					})
					req := request(t, t.Context(), "POST", s.URL, strings.NewReader(strings.Repeat("x", 5000)))
					if protocol == "HTTP/2" {
						req.Trailer = http.Header{"Sum": {"42"}}
					}
					resp, err := base(t, s).RoundTrip(req)
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					<-answered
					return append(f.lines, fmt.Sprintf("status %d, close %v", resp.StatusCode, resp.Close))
				}
				want := found(func(h http.Handler) http.Handler { return h })
				assert.Equal(t, want, found(hedge.NewLimiter(1).Handler))
			})
		}
	}
}

// talk sends something over a connection of its own.
func talk(t *testing.T, s *httptest.Server, said string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, said)
	require.NoError(t, err)
	return c
}

func TestSlowUploadOverASocketHoldsNoPlaceAndArrivesWhole(t *testing.T) {
	l := hedge.NewLimiter(1)
	s := httptest.NewServer(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })))
	t.Cleanup(s.Close)
	slow := talk(t, s, "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nslow")
	resp, err := s.Client().Get(s.URL) // which waits for good, if the other has the place
	require.NoError(t, err)
	resp.Body.Close()
	_, err = io.WriteString(slow, "body")
	require.NoError(t, err)
	resp, err = http.ReadResponse(bufio.NewReader(slow), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "slowbody", string(got))
	assert.EqualValues(t, 2, l.Snapshot().Worked)
}

func TestClientThatBreaksOffItsBodyReachesNoHandler(t *testing.T) {
	l := hedge.NewLimiter(1)
	s := httptest.NewServer(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it has gone") })))
	t.Cleanup(s.Close)
	require.NoError(t, talk(t, s, "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nslow").Close())
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, hedge.LimiterSnapshot{Limit: 1, Left: 1}, l.Snapshot()) }, 10*time.Second, ms)
}

// The server's ReadTimeout, and a deadline that a handler before the Limiter has set, end the reading. The handler is told.
func TestHandlerSeesThatABodyIsLate(t *testing.T) {
	for name, late := range map[string]struct {
		timeout time.Duration // of the server
		before  func(w http.ResponseWriter)
	}{
		"ReadTimeout": {timeout: 300 * ms},
		"SetReadDeadline": {before: func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(100 * ms))
		}},
	} {
		for limited, limit := range map[string]func(http.Handler) http.Handler{
			"without": func(h http.Handler) http.Handler { return h }, "behind a Limiter": hedge.NewLimiter(1).Handler,
		} {
			t.Run(name+" "+limited, func(t *testing.T) {
				h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					got, err := io.ReadAll(r.Body)
					_, _ = fmt.Fprintf(w, "%s, late %v", got, errors.Is(err, os.ErrDeadlineExceeded))
				}))
				s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if late.before != nil {
						late.before(w)
					}
					h.ServeHTTP(w, r)
				}))
				s.Config.ReadTimeout = late.timeout
				s.Start()
				t.Cleanup(s.Close)
				c := talk(t, s, "POST / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nslow")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "slow, late true", string(got))
			})
		}
	}
}
