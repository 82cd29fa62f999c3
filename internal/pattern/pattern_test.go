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

// TestMuxIgnoresPatternsThatRedirect also uses CONNECT, for which [http.ServeMux.Handler] returns a path in place of the pattern
// that redirects.
func TestMuxIgnoresPatternsThatRedirect(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		path     string
		want     string // pattern that Find chooses; "": none
	}{
		{[]string{"/x/"}, "/x", ""},
		{[]string{"/{tenant}/"}, "/x", ""},
		{[]string{"/{tenant}/"}, "/a%2Fb", ""},
		{[]string{"/{tenant}/"}, "/x/y", "/{tenant}/"},
		{[]string{"/{tenant}/", "/"}, "/x", "/"},
		{[]string{"/x/", "/{tenant}/", "shop.test/{tenant}/{$}", "/{id}"}, "/x", "/{id}"},
		{[]string{"shop.test/", "/{tenant}/"}, "/x", "shop.test/"},
		{[]string{"CONNECT /x/", "GET /x/", "/x/", "/{tenant}/"}, "/x", ""},
	} {
		var m pattern.Mux[string]
		for _, p := range c.patterns {
			assert.NoError(t, m.Add(p, "", p))
		}
		u, err := url.Parse(c.path)
		assert.NoError(t, err)
		for _, method := range []string{"GET", "CONNECT"} {
			for _, u.Host = range []string{"", "shop.test", "shop.test:80"} {
				found, _, ok := m.Find(method, "shop.test:80", u)
				assert.Equal(t, c.want, found, "%s %s in %q", method, u, c.patterns)
				assert.Equal(t, c.want != "", ok, "%s %s in %q", method, u, c.patterns)
			}
		}
	}
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
