package livetests_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

// object is 100 kB that no other offset looks like.
var object = func() []byte {
	var b bytes.Buffer
	for b.Len() < 100_000 {
		_, _ = fmt.Fprintf(&b, "%d\n", b.Len())
	}
	return b.Bytes()[:100_000]
}()

func TestResumeOverTheNetwork(t *testing.T) {
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			var stall atomic.Bool
			gone := make(chan struct{}, 1)
			s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Etag", `"1"`)
				if r.Header.Get("Range") != "" {
					http.ServeContent(w, r, "object", time.Time{}, bytes.NewReader(object))
					return
				}
				w.Header().Set("Accept-Ranges", "bytes")
				w.Header().Set("Content-Length", strconv.Itoa(len(object)))
				_, _ = w.Write(object[:50_000])
				w.(http.Flusher).Flush()
				if stall.CompareAndSwap(true, false) {
					<-r.Context().Done()
					gone <- struct{}{}
					return
				}
				pause(r, 100*ms) // half of what is a stall then: longer than those of a busy machine
				_, _ = w.Write(object[50_000:])
			})
			tr := hedge.New(base(t, s), hedge.WithResume())
			defer tr.CloseIdleConnections()
			ctx := hedge.WithDelay(t.Context(), time.Hour) // no hedge of a late answer takes the stall, or wins
			for range 10 {
				got, err := fetch(ctx, tr, s.URL)
				require.NoError(t, err)
				require.Equal(t, string(object), got)
			}
			stall.Store(true)
			got, err := fetch(ctx, tr, s.URL)
			require.NoError(t, err)
			assert.True(t, got == string(object))
			assert.EqualValues(t, 1, tr.Snapshot().Stats.ResumeWins)
			select {
			case <-gone:
			case <-time.After(5 * time.Second):
				t.Error("the original goes on")
			}
			got, err = fetch(ctx, tr, s.URL)
			require.NoError(t, err)
			assert.True(t, got == string(object))
		})
	}
}

// TestVersionsAreNeverMixed downloads from a server whose object changes, whose connections stall and break off, and
// which sometimes does not know If-Range.
func TestVersionsAreNeverMixed(t *testing.T) {
	for protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			var version, requests, stalls atomic.Int64
			var unruly atomic.Bool
			content := func(v int64) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%07d\n", v)), len(object)/8) }
			s := serve(t, protocol, func(w http.ResponseWriter, r *http.Request) {
				v := version.Load()
				data := content(v)
				w.Header().Set("Etag", fmt.Sprintf("%q", strconv.FormatInt(v, 10)))
				// More stalls than one in twenty would be none.
				if r.Header.Get("Range") != "" || !unruly.Load() || requests.Add(1)%25 != 0 {
					if rand.IntN(2) == 0 {
						r.Header.Del("If-Range")
					}
					http.ServeContent(w, r, "object", time.Time{}, bytes.NewReader(data))
					return
				}
				w.Header().Set("Accept-Ranges", "bytes")
				w.Header().Set("Content-Length", strconv.Itoa(len(data)))
				at := rand.IntN(len(data))
				_, _ = w.Write(data[:at])
				w.(http.Flusher).Flush()
				n := stalls.Add(1)
				if n%2 == 0 {
					version.Add(1)
				}
				pause(r, time.Second)
				if n%3 == 0 {
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(data[at:])
			})
			tr := hedge.New(base(t, s), hedge.WithResume(), hedge.WithBudgetPercent(300), hedge.WithMaxHedges(3))
			defer tr.CloseIdleConnections()
			download := func() error {
				resp, err := tr.RoundTrip(request(t, t.Context(), "GET", s.URL, nil))
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				got, err := io.ReadAll(resp.Body)
				v, _ := strconv.ParseInt(strings.Trim(resp.Header.Get("Etag"), `"`), 10, 64)
				assert.True(t, bytes.HasPrefix(content(v), got), "%d bytes", len(got))
				assert.True(t, err != nil || len(got) == len(object))
				return err
			}
			for range 20 {
				require.NoError(t, download())
			}
			unruly.Store(true)
			var calls sync.WaitGroup
			for range 4 {
				calls.Go(func() {
					for range 100 {
						_ = download() // some break off
					}
				})
			}
			calls.Wait()
			assert.Positive(t, tr.Snapshot().Stats.Resumes)
			assert.Positive(t, version.Load())
		})
	}
}
