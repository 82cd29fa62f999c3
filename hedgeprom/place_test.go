package hedgeprom_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestPlacesAreCountedAndSeenToBeOutAndBack compares the metrics with what was sent, and with the Snapshot.
func TestPlacesAreCountedAndSeenToBeOutAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		var mu sync.Mutex // guards sent
		sent := make(map[string]int)
		base := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			sent[req.URL.Host]++
			mu.Unlock()
			d := 80 * ms
			if req.URL.Host == "near.test" {
				if d = 10 * ms; down.Load() {
					return nil, errors.New("connection refused")
				}
			}
			if err := doubles.Sleep(req.Context(), d); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, ProtoMajor: 2, Body: http.NoBody}, nil
		})
		c := hedgeprom.New()
		tr := hedge.New(base, hedge.WithPlaces(hedge.Place{URL: "http://near.test"}, hedge.Place{URL: "http://far.test/api"}),
			hedge.WithName("shop"), hedge.WithObserver(c))
		play := func(calls int) {
			for range calls {
				req, err := http.NewRequestWithContext(t.Context(), "GET", "http://near.test/item", nil)
				require.NoError(t, err)
				if resp, err := tr.RoundTrip(req); err == nil {
					require.NoError(t, resp.Body.Close())
				}
				synctest.Wait()
			}
		}
		check := func(out int) {
			var keys []hedge.KeySnapshot
			for _, k := range tr.Snapshot().Keys {
				if k.Places != nil {
					keys = append(keys, k)
				}
			}
			require.Len(t, keys, 1)
			nearby, away := keys[0].Places[0], keys[0].Places[1]
			assert.EqualValues(t, sent["near.test"], nearby.Calls+nearby.Hedges)
			assert.EqualValues(t, sent["far.test"], away.Calls+away.Hedges)
			text := `
# HELP hedge_place_attempts_total Attempts that went to a place, of calls that have a choice of places, by type.
# TYPE hedge_place_attempts_total counter
# HELP hedge_place_bad_total Of those, the ones that failed, or that were overtaken by one at another place.
# TYPE hedge_place_bad_total counter
# HELP hedge_place_out Keys (hosts, or their routes) whose calls go to other places.
# TYPE hedge_place_out gauge
hedge_place_out{client="shop",host="near.test",place="http://far.test/api",protocol="http"} 0
hedge_place_out{client="shop",host="near.test",place="http://near.test",protocol="http"} ` + fmt.Sprintln(out)
			for _, p := range keys[0].Places {
				host, place := `client="shop",host="near.test"`, fmt.Sprintf(`place="%s",protocol="http"`, p.Place)
				text += fmt.Sprintf("hedge_place_attempts_total{%s,%s,type=\"hedge\"} %d\n", host, place, p.Hedges)
				text += fmt.Sprintf("hedge_place_attempts_total{%s,%s,type=\"original\"} %d\n", host, place, p.Calls)
				text += fmt.Sprintf("hedge_place_bad_total{%s,outcome=\"failed\",%s} %d\n", host, place, p.Failures)
				text += fmt.Sprintf("hedge_place_bad_total{%s,outcome=\"overtaken\",%s} %d\n", host, place, p.Overtaken)
			}
			require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(text), "hedge_place_attempts_total", "hedge_place_bad_total", "hedge_place_out"))
		}
		play(100)
		check(0)
		down.Store(true)
		play(100)
		check(1)
		down.Store(false)
		play(5000)
		check(0)
	})
}

// TestAPlaceIsOutForEachKeyThatSaysSo has two routes of a host, of which each has its own opinion.
func TestAPlaceIsOutForEachKeyThatSaysSo(t *testing.T) {
	c := hedgeprom.New()
	event := func(route string, kind hedge.PlaceKind) {
		c.Placed(hedge.KeyInfo{Client: "shop", Host: "near", Protocol: "grpc", Route: route}, hedge.PlaceEvent{Place: "dns:///near", Kind: kind})
	}
	is := func(want int) {
		t.Helper()
		assert.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(fmt.Sprintf(`
# HELP hedge_place_out Keys (hosts, or their routes) whose calls go to other places.
# TYPE hedge_place_out gauge
hedge_place_out{client="shop",host="near",place="dns:///near",protocol="grpc"} %d
`, want)), "hedge_place_out"))
	}
	event("/a", hedge.PlaceOut)
	event("/b", hedge.PlaceOut)
	is(2)
	event("/a", hedge.PlaceBack)
	is(1)
	event("/b", hedge.PlaceBack)
	is(0)
}

func TestLabelsOfPlacesAreBounded(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithMaxHosts(1))
	for host := range 3 {
		for place := range 20 {
			key := hedge.KeyInfo{Host: fmt.Sprint("h", host)}
			for _, kind := range []hedge.PlaceKind{hedge.PlaceCalled, hedge.PlaceOut, hedge.PlaceBack, "of a later version"} {
				c.Placed(key, hedge.PlaceEvent{Place: fmt.Sprintf("http://%d.test/\xff", place), Kind: kind})
			}
		}
	}
	assert.Equal(t, 2*(8+1+1), testutil.CollectAndCount(c, "hedge_place_attempts_total"), "eight places and Other of a host, and those of the host Other")
	assert.Equal(t, 8, testutil.CollectAndCount(c, "hedge_place_out"), "what shares a label has no gauge")
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func BenchmarkPlaced(b *testing.B) {
	c := hedgeprom.New()
	key := hedge.KeyInfo{Client: "shop", Host: "near.test", Protocol: "http"}
	b.ReportAllocs()
	for b.Loop() {
		c.Placed(key, hedge.PlaceEvent{Place: "http://near.test/api", Kind: hedge.PlaceCalled})
	}
}
