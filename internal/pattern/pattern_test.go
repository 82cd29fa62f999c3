package pattern_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/pattern"
)

func TestZeroMuxFindsNothing(t *testing.T) {
	var m pattern.Mux[int]
	v, _, ok := m.Find("GET", "shop.test", &url.URL{Path: "/a"})
	assert.Zero(t, v)
	assert.False(t, ok)
}

func TestMuxMatchesHostInAnySpellingAndPort(t *testing.T) {
	for _, c := range []struct {
		pattern string
		hosts   []string
		others  []string
	}{
		{"[::1]/admin/", []string{"[::1]", "[::1]:80", "[::1]:8080", "[0:0:0:0:0:0:0:1]:1", "[0::1]"}, []string{"[::2]", "[::2]:8080", "::11", "localhost"}},
		{"GET [2001:DB8::0:1]/admin/", []string{"[2001:db8::1]", "[2001:0db8::1]:443"}, []string{"[2001:db8::1:1]"}},
		{"[fe80::1%eth0]/admin/", []string{"[fe80::1%eth0]", "[fe80::1%25eth0]:8080", "[FE80::1%ETH0]:8080"}, []string{"[fe80::1]", "[fe80::1%eth1]"}},
		{"::1/admin/", []string{"[::1]", "[::1]:8080"}, []string{"[::2]"}},
		{"10.0.0.1/admin/", []string{"10.0.0.1", "10.0.0.1:8080"}, []string{"10.0.0.2", "[::ffff:10.0.0.1]"}},
		{"Shop.test./admin/", []string{"shop.test", "SHOP.test:80", "shop.test.:8080"}, []string{"a.shop.test"}},
	} {
		var m pattern.Mux[int]
		assert.NoError(t, m.Add(c.pattern, "", 1))
		find := func(host string) bool {
			_, _, ok := m.Find("GET", host, &url.URL{Path: "/admin/x"})
			return ok
		}
		for _, host := range c.hosts {
			assert.True(t, find(host), "%s, %s", c.pattern, host)
		}
		for _, host := range c.others {
			assert.False(t, find(host), "%s, %s", c.pattern, host)
		}
	}
}
