package hedgetest_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
	"github.com/gohedge/hedge/internal/doubles"
)

// failures is a test that only writes down how it fails.
type failures struct {
	testing.TB
	mu  sync.Mutex // guards all
	all []string

	ends []func() // what is to be called when the test ends
}

// Cleanup keeps f until end is called.
func (f *failures) Cleanup(end func()) { f.ends = append(f.ends, end) }

// end ends the test.
func (f *failures) end() {
	for _, end := range f.ends {
		end()
	}
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

// Fatalf panics, as a test that ends here does not go on.
func (f *failures) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f)
}

// protocols are the protocols of a server.
var protocols = map[string]func(testing.TB, http.Handler) *hedgetest.Server{
	"HTTP/1.1": hedgetest.NewServer,
	"HTTP/2.0": hedgetest.NewHTTP2Server,
}

func init() {
	if !doubles.Go126 { // see [hedgetest.NewHTTP2Server]
		delete(protocols, "HTTP/2.0")
	}
}

// TestHTTP2IsTested says where it is not.
func TestHTTP2IsTested(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	assert.Len(t, protocols, 2)
}

// send makes a call to a host and returns the answer to it, and its body.
func send(t *testing.T, rt http.RoundTripper, method, path, body string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://shop.test"+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// recorded returns a Transport to a server that reports its calls to a Recorder.
func recorded(server *hedgetest.Server, calls *hedgetest.Recorder) *hedge.Transport {
	return hedge.New(server.Transport(), hedge.WithObserver(calls))
}
