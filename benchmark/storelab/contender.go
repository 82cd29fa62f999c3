package storelab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/rangeread"
)

// A rangeReader reads the bytes of the object from offset off into p, with the client that is measured.
type rangeReader func(ctx context.Context, p []byte, off int64) error

// Names of contenders that bounds and tests refer to.
const (
	Plain     = "none"
	Rangeread = "rangeread"
)

var contenders = []lab.Contender[*objectStore, rangeReader]{
	{Name: Plain, Start: startPlainReader},
	{Name: "hedgedhttp-50ms", Start: newHTTPStarter(func(base http.RoundTripper) (http.RoundTripper, error) {
		return failsafehttp.NewRoundTripper(base, hedgepolicy.NewWithDelay[*http.Response](50*time.Millisecond)), nil
	})},
	{Name: "failsafe-quantile", Start: newHTTPStarter(func(base http.RoundTripper) (http.RoundTripper, error) {
		policy := hedgepolicy.NewBuilderWithDelayQuantile[*http.Response](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
			WithBudget(budget.NewBuilder().Build()).Build()
		return failsafehttp.NewRoundTripper(base, policy), nil
	})},
	{Name: "stall-timeout", Start: newStallTimeoutStarter(500 * time.Millisecond)},
	{Name: "stall-timeout-20ms", Start: newStallTimeoutStarter(20 * time.Millisecond)},
	{Name: "parts-4", Start: startParallelReader},
	{Name: "hedge-resume", Start: newHTTPStarter(func(base http.RoundTripper) (http.RoundTripper, error) {
		return hedge.New(base, hedge.WithResume()), nil
	})},
	{Name: Rangeread, Start: func(s *objectStore) (rangeReader, error) {
		object := rangeread.NewStore(rangeread.Options{}).Open(s.fetchRange)
		return func(ctx context.Context, p []byte, off int64) error {
			_, err := object.ReadAtContext(ctx, p, off)
			return err
		}, nil
	}},
}

// Contenders lists the names of all contenders.
var Contenders = lab.NamesOf(contenders)

// entityTag is the version of the object.
const entityTag = `"one"`

// fetchRange requests a range of the object. Clients built on package rangeread use it to read from the store.
func (s *objectStore) fetchRange(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	b, err := s.openBody(ctx, r.Offset, r.Length)
	if err != nil {
		return nil, rangeread.Info{}, err
	}
	return b, rangeread.Info{Offset: r.Offset, Length: r.Length, Size: s.size, Tag: entityTag}, nil
}

// newHTTPStarter returns a function that starts a client that reads by HTTP GET. wrap adds hedging to its transport.
func newHTTPStarter(wrap func(http.RoundTripper) (http.RoundTripper, error)) func(*objectStore) (rangeReader, error) {
	return func(s *objectStore) (rangeReader, error) {
		rt, err := wrap(s)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, p []byte, off int64) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://store/object", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1))
			resp, err := rt.RoundTrip(req)
			if err != nil {
				return err
			}
			_, err = io.ReadFull(resp.Body, p)
			return errors.Join(err, resp.Body.Close())
		}, nil
	}
}

// RoundTrip answers a GET for a range of the object, as Amazon S3 does.
func (s *objectStore) RoundTrip(req *http.Request) (*http.Response, error) {
	var from, to int64
	if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		return nil, fmt.Errorf("range %q: %w", req.Header.Get("Range"), err)
	}
	b, err := s.openBody(req.Context(), from, to-from+1)
	if err != nil {
		return nil, err
	}
	h := make(http.Header)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", fmt.Sprint(b.size))
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, s.size))
	h.Set("Etag", entityTag)
	return &http.Response{
		Status: "206 Partial Content", StatusCode: http.StatusPartialContent, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: b, ContentLength: b.size, Request: req,
	}, nil
}

// startPlainReader starts a contender that reads each range by one request, without hedging or retries.
var startPlainReader = newHTTPStarter(func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil })

// startParallelReader starts a client that reads a range by four parallel requests, like the downloader of the AWS SDK.
func startParallelReader(s *objectStore) (rangeReader, error) {
	const parts = 4
	s.requestSize = ReadSize / parts
	read, err := startPlainReader(s)
	return func(ctx context.Context, p []byte, off int64) error {
		errs := make([]error, parts)
		var reading sync.WaitGroup
		size := len(p) / parts
		for n := range parts {
			reading.Go(func() { errs[n] = read(ctx, p[n*size:(n+1)*size], off+int64(n*size)) })
		}
		reading.Wait()
		return errors.Join(errs...)
	}, err
}

// A stallTimeoutClient reads from the store, and retries a request whose first byte is late. It models the option
// WithReadStallTimeout of Google's storage client, from the documentation of that option.
//
// The timeout starts at a minimum. It moves to the 99th percentile of the client's requests if that is longer. A retry
// waits for a random part of a second, and each further retry for twice as long.
type stallTimeoutClient struct {
	store   *objectStore
	minimum time.Duration

	mu      sync.Mutex // guards the fields below
	timeout time.Duration
	random  *rand.Rand
}

func newStallTimeoutStarter(minimum time.Duration) func(*objectStore) (rangeReader, error) {
	return func(s *objectStore) (rangeReader, error) {
		t := &stallTimeoutClient{store: s, minimum: minimum, timeout: minimum, random: rand.New(rand.NewPCG(s.seed, 1))}
		return t.readRange, nil
	}
}

// readRange reads the bytes from offset off into p. It repeats the request, after a random pause, until the first byte
// arrives within the timeout.
func (t *stallTimeoutClient) readRange(ctx context.Context, p []byte, off int64) error {
	for maxPause := time.Second; ; maxPause = min(2*maxPause, 30*time.Second) {
		b, err := t.openBody(ctx, off, int64(len(p)))
		if err == nil {
			_, err = io.ReadFull(b, p)
			return errors.Join(err, b.Close())
		}
		t.mu.Lock()
		pause := time.Duration(t.random.Int64N(int64(maxPause)))
		t.mu.Unlock()
		if err := lab.SleepContext(ctx, pause); err != nil {
			return err
		}
	}
}

// openBody requests n bytes at offset off. It returns an error if the first byte does not arrive within the timeout. It
// raises the timeout if the first byte was late, and otherwise lowers it.
func (t *stallTimeoutClient) openBody(ctx context.Context, off, n int64) (*responseBody, error) {
	t.mu.Lock()
	limit := t.timeout
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(limit, cancel)
	b, err := t.store.openBody(ctx, off, n)
	late := !timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	// The steps up and down balance where one request in a hundred is late.
	const up, share = 1.05, 0.99
	factor := math.Pow(up, -(1-share)/share)
	if late {
		factor = up
	}
	t.timeout = max(time.Duration(float64(t.timeout)*factor), t.minimum)
	if late && err == nil {
		return nil, errors.Join(context.DeadlineExceeded, b.Close())
	}
	return b, err
}
