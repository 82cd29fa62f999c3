package pattern_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/pattern"
)

func TestTheZeroMuxFindsNothing(t *testing.T) {
	var m pattern.Mux[int]
	v, _, ok := m.Find("GET", "shop.test", &url.URL{Path: "/a"})
	assert.Zero(t, v)
	assert.False(t, ok)
}
