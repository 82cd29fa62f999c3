package hedgetest_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgetest"
)

// TestSnippetsOfTestingPageAreTests checks that each snippet of docs/testing.md is part of a test.
func TestSnippetsOfTestingPageAreTests(t *testing.T) {
	page, err := os.ReadFile("../docs/testing.md")
	require.NoError(t, err)
	var tests strings.Builder
	for _, name := range []string{"docs_test.go", "grpctest/docs_test.go"} {
		src, err := os.ReadFile(name)
		require.NoError(t, err)
		tests.Write(src)
	}
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, snippets)
	flush := func(code string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(code, "") }
	for _, s := range snippets {
		assert.Contains(t, flush(tests.String()), "\n"+flush(s[1]), "a snippet that is no test")
	}
}

// shop is the program of the page: it searches, and keeps orders by their keys.
type shop struct {
	mu     sync.Mutex // guards orders
	orders map[string]string
}

func newShop() *shop { return &shop{orders: make(map[string]string)} }

func (s *shop) Orders() any { return s.orders }

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPut {
		s.orders[r.URL.Path] = "ordered"
	}
	fmt.Fprintln(w, r.Method, r.URL.Path) // a body, as most servers have one
}

func TestStalledSearchIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := hedgetest.NewServer(t, newShop()) // or NewHTTP2Server, with Go 1.26
		var calls hedgetest.Recorder
		rt := hedge.New(server.Transport(), hedge.WithObserver(&calls))
		hedgetest.Warm(t, rt, 10*time.Millisecond, "shop.test")
		server.At(1, hedgetest.Fault{Stall: true}) // the next attempt is never answered
		resp, err := (&http.Client{Transport: rt}).Get("http://shop.test/search")
		require.NoError(t, err)
		resp.Body.Close()
		calls.Hedged(t, 1)
	})
}

func TestOrderIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := hedgetest.NewServer(t, newShop())
		var calls hedgetest.Recorder
		rt := hedge.New(server.Transport(), hedge.WithObserver(&calls))
		hedgetest.Warm(t, rt, 10*time.Millisecond, "shop.test")

		server.At(1, hedgetest.Fault{Delay: time.Minute}) // in fake time
		resp, err := (&http.Client{Transport: rt}).Post("http://shop.test/orders", "", nil)
		require.NoError(t, err)
		resp.Body.Close()
		calls.SentOnce(t)
	})
}

func TestPutIsSafeToHedge(t *testing.T) {
	shop := newShop()
	server := hedgetest.NewServer(t, shop)
	client := &http.Client{Transport: hedgetest.Twice(t, server.Transport(), shop.Orders)}
	req, _ := http.NewRequest("PUT", "http://shop.test/orders/1", nil)
	_, _ = client.Do(req)
	assert.Equal(t, map[string]string{"/orders/1": "ordered"}, shop.orders)
	assert.Equal(t, 3, server.Attempts())
}
