package rangeread_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/rangeread"
)

// An httpObject is the object of a file server.
type httpObject struct {
	size    int64
	version atomic.Int64
	fault   func(w http.ResponseWriter) http.ResponseWriter // nil: none
}

func (o *httpObject) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := int(o.version.Load())
	w.Header().Set("ETag", `"`+strconv.Itoa(v)+`"`)
	if o.fault != nil {
		w = o.fault(w)
	}
	content := io.NewSectionReader(readerAt(func(p []byte, off int64) (int, error) {
		fill(v%len(patterns), off, p)
		return len(p), nil
	}), 0, o.size)
	http.ServeContent(w, r, "", time.Time{}, content)
}

type readerAt func([]byte, int64) (int, error)

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r(p, off) }

// TestRangesOverHTTP reads with net/http over each of its protocols, also from a server that does not support ranges.
func TestRangesOverHTTP(t *testing.T) {
	for protocol := range doubles.Protocols {
		for name, strip := range map[string]bool{"ranges": false, "ranges are ignored": true} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				o := &httpObject{size: 300_001}
				s := doubles.NewServer(t, protocol, func(w http.ResponseWriter, r *http.Request) {
					if strip {
						r.Header.Del("Range")
					}
					o.ServeHTTP(w, r)
				})
				store := rangeread.NewStore(rangeread.Options{PartSize: 100_000})
				object := store.Open(fetchHTTP(s.Client(), s.URL))
				p := make([]byte, 400_000)
				for _, off := range []int64{0, 1, 299_999, 300_001, 500_000} {
					n, err := object.ReadAt(p, off)
					assert.Equal(t, io.EOF, err)
					assert.EqualValues(t, max(o.size-off, 0), n)
					isOf(t, 0, off, p[:n])
				}
				b, err := io.ReadAll(object.NewReader(t.Context(), 7, -1))
				require.NoError(t, err)
				assert.Len(t, b, 299_994)
				isOf(t, 0, 7, b)
				o.version.Add(1)
				_, err = object.ReadAt(p[:10], 0)
				assert.ErrorIs(t, err, rangeread.ErrChanged)
			})
		}
	}
}

// answers are responses of servers to a request for bytes 2 to 5 of "0123456789".
var answers = map[string]struct {
	status       int
	contentRange string
	body         string
	want         string // what is read of them; "": an error
}{
	"as usual":                 {http.StatusPartialContent, "bytes 2-5/10", "2345", "2345"},
	"whole":                    {http.StatusOK, "", "0123456789", "2345"},
	"whole, with a range":      {http.StatusOK, "bytes 2-5/10", "0123456789", "2345"},
	"from before on":           {http.StatusPartialContent, "bytes 1-5/10", "12345", "2345"},
	"the size is not said":     {http.StatusPartialContent, "bytes 2-5/*", "2345", "2345"},
	"the size is none":         {http.StatusPartialContent, "bytes 2-5/99999999999999999999", "2345", "2345"},
	"no range":                 {http.StatusPartialContent, "", "2345", ""},
	"no numbers":               {http.StatusPartialContent, "bytes ", "2345", ""},
	"one number":               {http.StatusPartialContent, "bytes 2-", "2345", ""},
	"as of an answer of 416":   {http.StatusPartialContent, "bytes */10", "2345", ""},
	"it ends before it begins": {http.StatusPartialContent, "bytes 2-0/10", "2345", ""},
	"it ends before the range": {http.StatusPartialContent, "bytes 1-1/*", "1", ""},
	"it is the first part":     {http.StatusPartialContent, "bytes 0-1/*", "01", ""},
	"it begins later":          {http.StatusPartialContent, "bytes 3-5/10", "345", ""},
	"several ranges":           {http.StatusPartialContent, "", "--x\r\nContent-Range: bytes 2-5/10\r\n\r\n2345\r\n--x--\r\n", ""},
}

// TestReaderHandlesUnusualResponsesOverHTTP checks that the bytes are correct, or that there is an error other than
// io.EOF.
func TestReaderHandlesUnusualResponsesOverHTTP(t *testing.T) {
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if answer.contentRange != "" {
					w.Header().Set("Content-Range", answer.contentRange)
				}
				w.WriteHeader(answer.status)
				_, _ = io.WriteString(w, answer.body)
			}))
			defer s.Close()
			p := make([]byte, 4)
			n, err := rangeread.New(fetchHTTP(s.Client(), s.URL), rangeread.Options{}).ReadAt(p, 2)
			assert.Equal(t, answer.want, string(p[:n]))
			if answer.want != "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.NotErrorIs(t, err, io.EOF)
		})
	}
}

// TestWeakETagIsNoVersion covers weak ETags, for which If-Match is always false.
func TestWeakETagIsNoVersion(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `W/"1"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("0123456789"))
	}))
	defer s.Close()
	object := rangeread.New(fetchHTTP(s.Client(), s.URL), rangeread.Options{})
	p := make([]byte, 4)
	for off := range int64(3) {
		_, err := object.ReadAt(p, off)
		require.NoError(t, err)
		assert.Equal(t, "0123456789"[off:off+4], string(p))
	}
}

// TestReaderReusesConnections: a body that was read to its end leaves its connection to the next range.
func TestReaderReusesConnections(t *testing.T) {
	o := &httpObject{size: 1_000_000}
	s := doubles.NewServer(t, "HTTP/1.1", o.ServeHTTP)
	object := rangeread.New(fetchHTTP(s.Client(), s.URL), rangeread.Options{BudgetPercent: rangeread.NoBudget})
	p := make([]byte, 50_000)
	for i := range int64(20) {
		_, err := object.ReadAt(p, 50_000*i)
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, s.Accepted.Load(), int64(2)) // a body is closed after the read of which it is the end
}

// soakTime is the duration of the soak test: 2 s, or the value of HEDGE_RANGE_SOAK.
func soakTime(t *testing.T) time.Duration {
	d, err := time.ParseDuration(os.Getenv("HEDGE_RANGE_SOAK"))
	if err != nil {
		return 2 * time.Second
	}
	t.Logf("for %v", d)
	return d
}

// hurt is a fault of the soak's server: of twenty answers some are late, pause, or lose their connection.
func hurt(w http.ResponseWriter) http.ResponseWriter {
	switch rand.IntN(40) {
	case 0:
		time.Sleep(300 * time.Millisecond)
	case 1:
		return &faulty{ResponseWriter: w, after: rand.IntN(200_000), fault: func() { time.Sleep(300 * time.Millisecond) }}
	case 2:
		return &faulty{ResponseWriter: w, after: rand.IntN(200_000), fault: func() { panic(http.ErrAbortHandler) }}
	case 3:
		panic(http.ErrAbortHandler)
	}
	return w
}

// faulty goes wrong once, after so many bytes.
type faulty struct {
	http.ResponseWriter
	after int
	fault func()
}

func (f *faulty) Write(p []byte) (int, error) {
	if f.fault == nil || len(p) <= f.after {
		f.after -= len(p)
		return f.ResponseWriter.Write(p)
	}
	n, err := f.ResponseWriter.Write(p[:f.after])
	if err != nil {
		return n, err
	}
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	fault := f.fault
	f.fault = nil
	fault()
	m, err := f.ResponseWriter.Write(p[n:])
	return n + m, err
}

// TestSoak reads from a server that kills connections and replaces its object now and then, by many readers, some of which give up. No byte is wrong, and in
// the end there are as many goroutines as before, and as much memory. For ten minutes:
//
//	HEDGE_RANGE_SOAK=10m go test -run TestSoak -v -timeout 15m ./rangeread
func TestSoak(t *testing.T) {
	o := &httpObject{size: 3_000_000, fault: hurt}
	goroutines := runtime.NumGoroutine()
	s := httptest.NewServer(o)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	store := rangeread.NewStore(rangeread.Options{PartSize: 256 << 10, MaxBytes: 8 << 20})
	began, soak := time.Now(), soakTime(t)
	k := &soaker{store: store, fetch: fetchHTTP(&http.Client{Transport: transport}, s.URL), object: o}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for time.Since(began) < soak {
				k.read(t, random)
			}
		})
	}
	var early, late uint64
	all.Go(func() {
		time.Sleep(soak / 4)
		early = heap()
		time.Sleep(soak / 2)
		late = heap()
	})
	all.Wait()
	s.Close()
	transport.CloseIdleConnections()
	stats := store.Stats()
	t.Logf("%d right, %d ended by an error, %d changed, %d gave up; heap %d KiB at a quarter, %d KiB at three", k.right.Load(), k.failed.Load(), k.changed.Load(), k.gaveUp.Load(), early>>10, late>>10)
	t.Logf("%+v", stats)
	assert.Positive(t, k.right.Load())
	assert.Zero(t, stats.BytesHeld)
	assert.Less(t, late, early+(32<<20))
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools had
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A soaker reads, and counts the results.
type soaker struct {
	store                          *rangeread.Store
	fetch                          rangeread.Fetch
	object                         *httpObject
	right, failed, changed, gaveUp atomic.Int64
}

// read opens the object and makes some reads of it.
func (k *soaker) read(t *testing.T, random *rand.Rand) {
	r := k.store.Open(k.fetch)
	defer func() { _ = r.Close() }()
	version := -1 // of what was read first
	for range 1 + random.IntN(5) {
		ctx, cancel := context.WithCancel(t.Context())
		if random.IntN(20) == 0 {
			time.AfterFunc(time.Duration(random.IntN(20))*time.Millisecond, cancel)
		}
		off, length := random.Int64N(k.object.size), 1+random.Int64N(1<<(1+random.IntN(21)))
		var p []byte
		var err error
		if random.IntN(3) == 0 {
			s := r.NewReader(ctx, off, length)
			p, err = io.ReadAll(s)
			_ = s.Close()
		} else {
			p = make([]byte, length)
			var n int
			n, err = r.ReadAtContext(ctx, p, off)
			p = p[:n]
		}
		k.count(t, &version, off, min(length, k.object.size-off), p, err, ctx.Err() != nil)
		cancel()
		if random.IntN(500) == 0 {
			k.object.version.Add(1)
		}
	}
}

func (k *soaker) count(t *testing.T, version *int, off, want int64, p []byte, err error, gone bool) {
	for v := 0; *version < 0 && len(p) > 8 && v < len(patterns); v++ {
		if same(v, off, p) {
			*version = v
		}
	}
	if len(p) > 8 && (*version < 0 || !same(*version, off, p)) {
		t.Errorf("%d bytes at %d are not those of version %d", len(p), off, *version)
	}
	switch {
	case (err == nil || err == io.EOF) && int64(len(p)) == want:
		k.right.Add(1)
	case err == nil || err == io.EOF:
		t.Errorf("%d of %d bytes at %d, %v", len(p), want, off, err)
	case errors.Is(err, rangeread.ErrChanged):
		k.changed.Add(1)
	case gone:
		k.gaveUp.Add(1)
	case strings.HasPrefix(err.Error(), "rangeread:"):
		t.Errorf("nothing of the kind has happened: %v", err)
	default: // of a connection that was killed
		k.failed.Add(1)
	}
}

// strictServer serves object, and refuses a range that is not wholly inside it, with a Content-Range if that is not "".
func strictServer(t *testing.T, object, contentRange string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var first, last int
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); n == 2 && last >= len(object) {
			w.Header().Set("Content-Range", contentRange)
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(object))
	}))
	t.Cleanup(s.Close)
	return s
}

// TestExampleFetchReturnsEOFOnlyAtEndOfObject has refusals of a server that wants ranges to be wholly inside the object.
func TestExampleFetchReturnsEOFOnlyAtEndOfObject(t *testing.T) {
	for contentRange, ends := range map[string]bool{
		"bytes */10": false, "bytes */3": false, "bytes 0-9/10": false, "bytes */99999999999999999999": false,
		"bytes */2": true, "bytes */0": true, "bytes */*": true, "": true,
	} {
		s := strictServer(t, "0123456789", contentRange)
		_, _, err := fetchHTTP(s.Client(), s.URL)(t.Context(), rangeread.Range{Offset: 2, Length: 100})
		assert.Equal(t, ends, err == io.EOF, "%q: %v", contentRange, err)
		assert.Error(t, err)
		_, err = io.ReadAll(rangeread.New(fetchHTTP(s.Client(), s.URL), rangeread.Options{}).NewReader(t.Context(), 2, -1))
		assert.Equal(t, ends, err == nil, "%q: %v", contentRange, err)
	}
}

func TestExampleFetchDoesNotReturnEOFForBrokenConnection(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer s.Close()
	_, _, err := fetchHTTP(s.Client(), s.URL)(t.Context(), rangeread.Range{Length: 10})
	assert.ErrorIs(t, err, io.EOF)
	assert.NotEqual(t, io.EOF, err, "the object would seem to end at the first byte")
	assert.NotContains(t, err.Error(), s.URL)
}
