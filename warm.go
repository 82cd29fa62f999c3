package hedge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
)

// Warm opens up to n connections to the host of each URL (name lookup, TCP, TLS)
// before there is traffic, and returns when they are ready. Over HTTP/2 it opens
// one. It sends HEAD requests to the URLs through the base transport; they are not
// hedged, no latency is learned from them, and any status will do.
//
// The base decides how many connections stay: MaxIdleConnsPerHost is 2 by default,
// and MaxConnsPerHost bounds n. TLS sessions are resumed if its
// TLSClientConfig has a ClientSessionCache.
//
// Warm returns when ctx ends. Its error joins those of all URLs that could not be
// reached. It is an error if n is below 1.
func (t *Transport) Warm(ctx context.Context, n int, urls ...string) error {
	t.mustBeMade()
	if n < 1 {
		return fmt.Errorf("hedge: Warm: n %d is not at least 1", n)
	}
	if base, ok := t.next.(*http.Transport); ok && base.MaxConnsPerHost > 0 {
		n = min(n, base.MaxConnsPerHost)
	}
	errs := make([]error, len(urls))
	var wg sync.WaitGroup
	for i, url := range urls {
		wg.Go(func() { errs[i] = t.warm(ctx, n, url) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// warm sends one request, and unless all can share its connection, n at once. None of
// these is sent before each has a connection: a request that ended early would give
// its connection to the next.
func (t *Transport) warm(ctx context.Context, n int, url string) error {
	shared, err := t.head(ctx, url, func() {})
	if err != nil || shared || n == 1 {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting, wg sync.WaitGroup
	waiting.Add(n)
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			ready := sync.OnceFunc(waiting.Done)
			defer ready() // a request that fails must not hold up the others
			if _, errs[i] = t.head(ctx, url, func() { ready(); waiting.Wait() }); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// head sends a HEAD request, calls connected once it has a connection, and
// reports whether others could have shared it.
func (t *Transport) head(ctx context.Context, url string, connected func()) (shared bool, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected() }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodHead, url, nil)
	if err != nil {
		return false, fmt.Errorf("hedge: Warm: %w", err)
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return false, fmt.Errorf("hedge: Warm %s: %w", url, err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.ProtoMajor >= http2, err
}
