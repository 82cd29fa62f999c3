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
	"github.com/gohedge/hedge/benchmark/internal/virtual"
	"github.com/gohedge/hedge/rangeread"
)

// A reader reads the range at off into p.
type reader func(ctx context.Context, p []byte, off int64) error

// A contender is a way to read ranges.
type contender struct {
	name   string
	parts  int // requests for a read; 0: one
	reader func(*store) (reader, error)
}

// The contenders that are not named after what they are.
const (
	Plain     = "none"
	Rangeread = "rangeread"
)

var contenders = []contender{
	{name: Plain, reader: over(func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil })},
	{name: "static-50ms", reader: func(s *store) (reader, error) { return s.twice(50 * time.Millisecond), nil }},
	{name: "failsafe-quantile", reader: over(func(base http.RoundTripper) (http.RoundTripper, error) {
		policy := hedgepolicy.NewBuilderWithDelayQuantile[*http.Response](virtual.FailsafeQuantile, virtual.FailsafeAge, virtual.FailsafeThreshold).
			WithBudget(budget.NewBuilder().Build()).Build()
		return failsafehttp.NewRoundTripper(base, policy), nil
	})},
	{name: "stall-timeout", reader: newStallTimeout(500 * time.Millisecond)},
	{name: "stall-timeout-20ms", reader: newStallTimeout(20 * time.Millisecond)},
	{name: "parts-4", parts: 4, reader: func(s *store) (reader, error) { return s.inParts(4), nil }},
	{name: "hedge-resume", reader: over(func(base http.RoundTripper) (http.RoundTripper, error) {
		return hedge.New(base, hedge.WithResume()), nil
	})},
	{name: Rangeread, reader: func(s *store) (reader, error) {
		object := rangeread.NewStore(rangeread.Options{}).Open(s.fetch)
		return func(ctx context.Context, p []byte, off int64) error {
			_, err := object.ReadAtContext(ctx, p, off)
			return err
		}, nil
	}},
}

// Contenders are their names.
var Contenders = func() (names []string) {
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return names
}()

// tag is the version of the object.
const tag = `"one"`

// fetch is a rangeread.Fetch.
func (s *store) fetch(ctx context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	b, err := s.get(ctx, r.Offset, r.Length)
	if err != nil {
		return nil, rangeread.Info{}, err
	}
	return b, rangeread.Info{Offset: r.Offset, Length: r.Length, Size: s.size, Tag: tag}, nil
}

// over returns how a range is read by a GET through what is made of a transport.
func over(through func(http.RoundTripper) (http.RoundTripper, error)) func(*store) (reader, error) {
	return func(s *store) (reader, error) {
		rt, err := through(s)
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

// RoundTrip answers a GET for a range, as S3 does.
func (s *store) RoundTrip(req *http.Request) (*http.Response, error) {
	var from, to int64
	if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		return nil, fmt.Errorf("range %q: %w", req.Header.Get("Range"), err)
	}
	b, err := s.get(req.Context(), from, to-from+1)
	if err != nil {
		return nil, err
	}
	h := make(http.Header)
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", fmt.Sprint(b.size))
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, s.size))
	h.Set("Etag", tag)
	return &http.Response{
		Status: "206 Partial Content", StatusCode: http.StatusPartialContent, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: b, ContentLength: b.size, Request: req,
	}, nil
}

// plain reads the range with one request.
func (s *store) plain(ctx context.Context, p []byte, off int64) error {
	b, err := s.get(ctx, off, int64(len(p)))
	if err != nil {
		return err
	}
	_, err = io.ReadFull(b, p)
	return errors.Join(err, b.Close())
}

// inParts reads so many parts of a range at the same time, as the downloader of the AWS SDK does.
func (s *store) inParts(parts int) reader {
	return func(ctx context.Context, p []byte, off int64) error {
		errs := make([]error, parts)
		var all sync.WaitGroup
		size := len(p) / parts
		for n := range parts {
			all.Go(func() { errs[n] = s.plain(ctx, p[n*size:(n+1)*size], off+int64(n*size)) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
}

// twice sends a second request if the first byte does not come within the delay, as hedgedhttp does. It reads the answer that comes first, and
// cancels the other one.
func (s *store) twice(delay time.Duration) reader {
	type answer struct {
		*body
		err error
	}
	return func(ctx context.Context, p []byte, off int64) error {
		answers := [2]chan answer{make(chan answer, 1), make(chan answer, 1)}
		var cancels [2]context.CancelFunc
		send := func(n int) {
			var attempt context.Context
			attempt, cancels[n] = context.WithCancel(ctx)
			go func() {
				b, err := s.get(attempt, off, int64(len(p)))
				answers[n] <- answer{b, err}
			}()
		}
		send(0)
		defer func() { cancels[0]() }()
		var a answer
		select {
		case a = <-answers[0]:
		case <-time.After(delay):
			send(1)
			defer func() { cancels[1]() }()
			select {
			case a = <-answers[0]:
				cancels[1]()
			case a = <-answers[1]:
				cancels[0]()
			}
		}
		if a.err != nil {
			return a.err
		}
		_, err := io.ReadFull(a.body, p)
		return errors.Join(err, a.Close())
	}
}

// A stallTimeout retries a request whose first byte is late, as Google's client does with WithReadStallTimeout. It is written from the
// documents of that: the timeout is at least, and at first, the least one, and goes to the 99th percentile of the client's requests if that is
// longer; retries wait for a random part of a second, and twice as long each time.
type stallTimeout struct {
	store *store
	least time.Duration

	mu     sync.Mutex // guards the fields below
	now    time.Duration
	random *rand.Rand
}

func newStallTimeout(least time.Duration) func(*store) (reader, error) {
	return func(s *store) (reader, error) {
		t := &stallTimeout{store: s, least: least, now: least, random: rand.New(rand.NewPCG(s.seed, 1))}
		return t.read, nil
	}
}

func (t *stallTimeout) read(ctx context.Context, p []byte, off int64) error {
	for most := time.Second; ; most = min(2*most, 30*time.Second) {
		b, err := t.try(ctx, off, int64(len(p)))
		if err == nil {
			_, err = io.ReadFull(b, p)
			return errors.Join(err, b.Close())
		}
		t.mu.Lock()
		wait := time.Duration(t.random.Int64N(int64(most)))
		t.mu.Unlock()
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// try sends a request, and returns an error if its first byte does not come in time.
func (t *stallTimeout) try(ctx context.Context, off, n int64) (*body, error) {
	t.mu.Lock()
	limit := t.now
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(limit, cancel)
	b, err := t.store.get(ctx, off, n)
	late := !timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	// One request in a hundred is late where these two balance.
	const up, share = 1.05, 0.99
	factor := math.Pow(up, -(1-share)/share)
	if late {
		factor = up
	}
	t.now = max(time.Duration(float64(t.now)*factor), t.least)
	if late && err == nil {
		return nil, errors.Join(context.DeadlineExceeded, b.Close())
	}
	return b, err
}
