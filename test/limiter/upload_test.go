package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// upload returns a request with a body of a known length.
func upload(ctx context.Context, length int64, body io.Reader) *http.Request {
	r := httptest.NewRequestWithContext(ctx, "POST", "/", body)
	r.ContentLength = length
	return r
}

// TestSlowUploadUsesNoSlot has as many clients as slots. They send no body for an hour.
func TestSlowUploadUsesNoSlot(t *testing.T) {
	for name, c := range map[string]struct {
		length int64
		header string
		waits  bool
	}{
		"64 KiB":           {length: 65536},
		"one byte":         {length: 1},
		"more than 64 KiB": {length: 65537, waits: true},
		"unknown length":   {length: -1, waits: true},
		"100-continue":     {length: 1, header: "100-continue", waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := hedge.NewLimiter(2)
				var got atomic.Int64
				h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					n, err := io.Copy(io.Discard, r.Body)
					assert.NoError(t, err)
					got.Add(n)
				}))
				var slow sync.WaitGroup
				for range 2 {
					body, feed := io.Pipe()
					slow.Go(func() {
						r := upload(t.Context(), c.length, body)
						if c.header != "" {
							r.Header.Set("Expect", c.header)
						}
						h.ServeHTTP(httptest.NewRecorder(), r)
					})
					slow.Go(func() {
						time.Sleep(time.Hour)
						_, _ = feed.Write(make([]byte, max(c.length, 1)))
						feed.Close()
					})
				}
				synctest.Wait()
				start := time.Now()
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
				assert.Equal(t, c.waits, time.Since(start) > 0)
				slow.Wait()
				assert.Equal(t, 2*max(c.length, 1), got.Load())
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 2, Worked: 3}, l.Snapshot())
			})
		})
	}
}

// breaking is a body that returns an error after its bytes.
type breaking struct {
	io.Reader
	err   error
	first func() // before the first Read
}

func (b *breaking) Read(p []byte) (int, error) {
	if b.first != nil {
		b.first()
		b.first = nil
	}
	n, err := b.Reader.Read(p)
	if err == io.EOF && b.err != nil {
		err = b.err
	}
	return n, err
}

func TestCanceledUploadUsesNoSlot(t *testing.T) {
	d, l := new(desk), hedge.NewLimiter(1)
	ctx, cancel := context.WithCancel(t.Context())
	w := httptest.NewRecorder()
	l.Handler(d).ServeHTTP(w, upload(ctx, 9, &breaking{strings.NewReader("some"), io.ErrUnexpectedEOF, cancel}))
	assert.Equal(t, 503, w.Code)
	assert.Empty(t, d.order())
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Left: 1}, l.Snapshot())
}

func TestHandlerReadsErrorOfBodyAfterItsBytes(t *testing.T) {
	for _, want := range []error{io.ErrUnexpectedEOF, &http.MaxBytesError{Limit: 4}, errors.New("decompression failed")} {
		var got []byte
		var err error
		l := hedge.NewLimiter(1)
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, err = io.ReadAll(r.Body)
			assert.EqualValues(t, 9, r.ContentLength)
		}))
		h.ServeHTTP(httptest.NewRecorder(), upload(t.Context(), 9, &breaking{strings.NewReader("some"), want, nil}))
		assert.Equal(t, "some", string(got))
		assert.Equal(t, want, err)
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, l.Snapshot())
	}
}

func TestLimiterRefusesHedgeBeforeReadingBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		h := l.Handler(new(desk))
		for range 5 {
			visit(t.Context(), h, "work")
		}
		w, read := httptest.NewRecorder(), false
		r := upload(t.Context(), 4, &breaking{strings.NewReader("body"), nil, func() { read = true }})
		r.Header.Set(hedge.AttemptHeader, "1")
		h.ServeHTTP(w, r)
		assert.False(t, read)
		assert.Equal(t, "1", w.Header().Get("Hedge-Refused"))
		assert.EqualValues(t, 1, l.Snapshot().Refused)
		time.Sleep(time.Minute)
	})
}

// TestUploadDoesNotCauseRefusalOfHedges checks that a slow upload does not count as a waiting request, for which hedges would be refused.
func TestUploadDoesNotCauseRefusalOfHedges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(1)
		h := l.Handler(d)
		for range 20 {
			body, feed := io.Pipe()
			go h.ServeHTTP(httptest.NewRecorder(), upload(t.Context(), 4, body))
			time.AfterFunc(time.Hour, func() { feed.Close() })
		}
		synctest.Wait()
		assert.Zero(t, l.Snapshot().Waiting)
		visit(t.Context(), h, "hedge", hedge.AttemptHeader, "1")
		assert.Equal(t, []string{"hedge"}, d.order())
		time.Sleep(2 * time.Hour)
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 21}, l.Snapshot())
	})
}

// TestMiddlewareReadsRestOfBody checks that middleware before the Limiter can read the bytes that the handler has not read.
func TestMiddlewareReadsRestOfBody(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"nothing":     func(http.ResponseWriter, *http.Request) {},
		"three bytes": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 3)) },
		"three bytes of its own body": func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, 100)
			_, _ = io.ReadFull(r.Body, make([]byte, 3))
		},
		"all bytes":        func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 9)) },
		"all":              func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) },
		"three and panics": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 3)); panic("x") },
	} {
		rest := func(h http.Handler) string {
			r := upload(t.Context(), 9, strings.NewReader("some body"))
			func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			left, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			return string(left)
		}
		outer := hedge.NewLimiter(1)
		assert.Equal(t, rest(handler), rest(hedge.NewLimiter(1).Handler(handler)), name)
		assert.Equal(t, rest(handler), rest(outer.Handler(hedge.NewLimiter(1).Handler(handler))), name)
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, outer.Snapshot())
	}
}

// TestHandlerReadsBodyThatExceedsMemoryLimit has waiting clients whose bodies exceed 64 MiB in total. The handler reads the further bodies
// itself, as it reads large ones.
func TestHandlerReadsBodyThatExceedsMemoryLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(1)
		goOn := make(chan struct{})
		h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-goOn
			n, err := io.Copy(io.Discard, r.Body)
			assert.NoError(t, err)
			assert.EqualValues(t, 65536, n)
		}))
		content := strings.Repeat("x", 65536)
		for range 1024 {
			go h.ServeHTTP(httptest.NewRecorder(), upload(t.Context(), 65536, strings.NewReader(content)))
		}
		synctest.Wait()
		body, feed := io.Pipe()
		go h.ServeHTTP(httptest.NewRecorder(), upload(t.Context(), 65536, body))
		go func() {
			_, _ = io.WriteString(feed, content)
			feed.Close()
		}()
		synctest.Wait()
		assert.EqualValues(t, 1024, l.Snapshot().Waiting, "the request waits although its body was not read completely")
		close(goOn)
		synctest.Wait()
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1025}, l.Snapshot())
		assert.Empty(t, d.order())
	})
}

// BenchmarkLimiter measures a request without a body, and uploads of two sizes, the larger of which is not read ahead.
func BenchmarkLimiter(b *testing.B) {
	content := strings.Repeat("x", 65537)
	for _, length := range []int64{0, 1000, 65537} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			h := hedge.NewLimiter(8).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/", nil)
			source := strings.NewReader("")
			r.ContentLength = length
			b.ReportAllocs()
			for b.Loop() {
				source.Reset(content[:length])
				r.Body = io.NopCloser(source)
				h.ServeHTTP(w, r)
			}
		})
	}
}
