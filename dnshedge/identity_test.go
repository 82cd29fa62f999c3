package dnshedge_test

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// identified is an Exchanger with an Identity.
type identified struct {
	exchanger
	identity string
}

func (i *identified) Identity() string { return i.identity }

func named1(identity string) *identified {
	return &identified{exchanger{addr: "192.0.2.1"}, identity}
}

// An import has answers only if the sources of the exporting and the importing Client are the same.
func TestImportAcceptsAnswersOfSameSourceOnly(t *testing.T) {
	bubble(t, func(l *lab) {
		for _, host := range []string{"a", "b", "c"} {
			l.serve(host, with("3600 A 192.0.2.1"))
		}
		a, b, c := l.up("udp", "a"), l.up("udp", "b"), l.up("udp", "c")
		trusting := a
		trusting.TrustAD = true
		validator := func(t dnssec.Trust) *dnssec.Validator { return &dnssec.Validator{Exchanger: named1("x"), Trust: t} }
		off := dnssec.Trust{Off: true}
		exchanging := func(e dnshedge.Exchanger) *dnshedge.Client { return &dnshedge.Client{Exchanger: e} }
		upstreams := func(ups ...dnshedge.Upstream) *dnshedge.Client { return &dnshedge.Client{Upstreams: ups} }
		routed := func(e dnshedge.Exchanger) *dnshedge.Client {
			return &dnshedge.Client{Upstreams: []dnshedge.Upstream{a}, Routes: map[string]dnshedge.Exchanger{"example": e}}
		}
		filtered := func(allow ...string) *dnshedge.Client {
			return &dnshedge.Client{Upstreams: []dnshedge.Upstream{a}, RebindFilter: &dnshedge.RebindFilter{Allow: allow}}
		}
		strict := func(ups ...dnshedge.Upstream) *dnshedge.Client {
			return &dnshedge.Client{Upstreams: ups, Order: dnshedge.OrderStrict}
		}
		for name, row := range map[string]struct {
			from, to *dnshedge.Client
			taken    bool
		}{
			"same upstreams":                {upstreams(a, b), upstreams(a, b), true},
			"upstreams in another order":    {upstreams(a, b), upstreams(b, a), true},
			"strict, in another order":      {strict(a, b), strict(b, a), false},
			"strict, in the same order":     {strict(a, b), strict(a, b), true},
			"another upstream":              {upstreams(a), upstreams(b), false},
			"one upstream more":             {upstreams(a), upstreams(a, b), false},
			"one that validates":            {upstreams(a), upstreams(trusting), false},
			"same fallback":                 {&dnshedge.Client{Upstreams: []dnshedge.Upstream{a}, Fallback: []dnshedge.Upstream{c}}, &dnshedge.Client{Upstreams: []dnshedge.Upstream{a}, Fallback: []dnshedge.Upstream{c}}, true},
			"another fallback":              {&dnshedge.Client{Upstreams: []dnshedge.Upstream{a}, Fallback: []dnshedge.Upstream{c}}, upstreams(a), false},
			"Exchanger for upstreams":       {upstreams(a), exchanging(named1("x")), false},
			"upstreams for Exchanger":       {exchanging(named1("x")), upstreams(a), false},
			"same Exchanger":                {exchanging(named1("x")), exchanging(named1("x")), true},
			"another Exchanger":             {exchanging(named1("x")), exchanging(named1("y")), false},
			"Exchangers without identity":   {exchanging(&exchanger{addr: "192.0.2.1"}), exchanging(&exchanger{addr: "192.0.2.1"}), false},
			"Exchangers of empty identity":  {exchanging(named1("")), exchanging(named1("")), false},
			"same validator":                {exchanging(validator(off)), exchanging(validator(off)), true},
			"validator is switched on":      {exchanging(named1("x")), exchanging(validator(off)), false},
			"validator with other Trust":    {exchanging(validator(off)), exchanging(validator(dnssec.Trust{Off: true, Insecure: []string{"corp"}})), false},
			"same route":                    {routed(named1("x")), routed(named1("x")), true},
			"another route":                 {routed(named1("x")), routed(named1("y")), false},
			"route without identity":        {routed(&exchanger{addr: "192.0.2.1"}), routed(&exchanger{addr: "192.0.2.1"}), false},
			"route to the Client's servers": {routed(nil), routed(nil), true},
			"route is new":                  {upstreams(a), routed(named1("x")), false},
			"same filter":                   {filtered("Corp.Example."), filtered("corp.example"), true},
			"filter is switched on":         {upstreams(a), filtered(), false},
			"filter is switched off":        {filtered(), upstreams(a), false},
			"filter with another exception": {filtered(), filtered("corp.example"), false},
		} {
			ready := func(c *dnshedge.Client) *dnshedge.Client {
				c.Cache = new(dnshedge.Cache)
				return l.client(c, c.Upstreams...)
			}
			from, to := ready(row.from), ready(row.to)
			l.must(from, "x.example.")
			var file bytes.Buffer
			require.NoError(t, from.Export(&file))
			require.NoError(t, to.Import(&file))
			_, has := to.Cache.Get(question("x.example.", 1))
			assert.Equal(t, row.taken, has, name)
		}
	})
}

// Clients may share a Cache. Each exports only its own answers, because it does not know the source of the others.
func TestExportOmitsAnswersOfOtherClients(t *testing.T) {
	cache := new(dnshedge.Cache)
	one := &dnshedge.Client{Exchanger: named1("x"), Cache: cache}
	other := &dnshedge.Client{Exchanger: named1("y"), Cache: cache}
	defer one.Close()
	defer other.Close()
	for name, c := range map[string]*dnshedge.Client{"one.example.": one, "other.example.": other} {
		_, _, err := c.Exchange(question(name, 1), "")
		require.NoError(t, err)
	}
	var file bytes.Buffer
	require.NoError(t, one.Export(&file))
	again := &dnshedge.Client{Exchanger: named1("x"), Cache: new(dnshedge.Cache)}
	defer again.Close()
	require.NoError(t, again.Import(&file))
	_, has := again.Cache.Get(question("one.example.", 1))
	assert.True(t, has)
	_, has = again.Cache.Get(question("other.example.", 1))
	assert.False(t, has)
}

// slowIdentity is an Exchanger whose Identity takes a second.
type slowIdentity struct{ exchanger }

func (*slowIdentity) Identity() string {
	time.Sleep(time.Second)
	return "slow"
}

func TestIdentityAllowsConcurrentCalls(t *testing.T) {
	bubbleOnly(t, func(t *testing.T) {
		c := &dnshedge.Client{Exchanger: new(slowIdentity)}
		defer c.Close()
		var wg sync.WaitGroup
		for range 3000 { // three times as many as may be under way
			wg.Go(func() { c.Identity() })
		}
		wg.Wait()
		for range 1000 {
			wg.Go(func() { assert.NotEmpty(t, c.Identity()) })
		}
		wg.Wait()
	})
}

// With several routes each, the number of paths through the Clients grows exponentially with their length.
func TestIdentityEndsForMutualClientsWithSeveralRoutes(t *testing.T) {
	a, b := new(dnshedge.Client), new(dnshedge.Client)
	a.Upstreams = []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}
	b.Upstreams = a.Upstreams
	a.Routes = map[string]dnshedge.Exchanger{"b": b, "10.in-addr.arpa": &dnssec.Validator{Exchanger: b, Trust: dnssec.Trust{Off: true}}}
	b.Routes = map[string]dnshedge.Exchanger{"a": a, "168.192.in-addr.arpa": a}
	outer := &dnshedge.Client{Exchanger: a, Cache: new(dnshedge.Cache)}
	for _, c := range []*dnshedge.Client{a, b, outer} {
		defer c.Close()
	}
	done := make(chan error, 1)
	go func() { done <- outer.Export(io.Discard) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.FailNow(t, "Export does not end")
	}
	for _, c := range []*dnshedge.Client{a, b, outer} {
		assert.Empty(t, c.Identity())
	}
}

func TestIdentityIsEmptyForMutualClients(t *testing.T) {
	for name, wrap := range map[string]func(*dnshedge.Client) dnshedge.Exchanger{
		"direct":         func(c *dnshedge.Client) dnshedge.Exchanger { return c },
		"without Unwrap": func(c *dnshedge.Client) dnshedge.Exchanger { return struct{ *dnshedge.Client }{c} },
	} {
		a, b := new(dnshedge.Client), new(dnshedge.Client)
		a.Upstreams = []dnshedge.Upstream{{Addr: "192.0.2.1:53"}}
		b.Upstreams = a.Upstreams
		a.Routes, b.Routes = map[string]dnshedge.Exchanger{"b": wrap(b)}, map[string]dnshedge.Exchanger{"a": wrap(a)}
		defer a.Close()
		defer b.Close()
		assert.Empty(t, a.Identity(), name)
	}
	assert.Equal(t, new(recursor.Resolver).Identity(), new(recursor.Resolver).Identity())
}
