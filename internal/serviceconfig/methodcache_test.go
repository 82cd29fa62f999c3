package serviceconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

func TestMethodCacheIsBounded(t *testing.T) {
	const most = 4096
	var c serviceconfig.MethodCache
	name := func(i int) string { return fmt.Sprintf("/made.up/M%d", i) }
	kept := func() (n int) {
		for i := range 3 * most {
			if _, ok := c.Load(name(i)); ok {
				n++
			}
		}
		return n
	}
	for i := range 3 * most {
		actual, early := c.LoadOrStore(name(i), i)
		assert.Equal(t, i, actual)
		assert.Equal(t, i < most, early)
		if i%1024 == 1022 {
			assert.Equal(t, i%most+1, kept(), "after %d", i)
		}
	}
	assert.Zero(t, kept(), "a full cache forgets all")

	long := strings.Repeat("M", 257)
	actual, early := c.LoadOrStore(long, 1)
	assert.Equal(t, 1, actual)
	assert.False(t, early)
	_, ok := c.Load(long)
	assert.False(t, ok, "a long name is not kept")
}

func TestMethodCacheKeepsFirstValue(t *testing.T) {
	var c serviceconfig.MethodCache
	_, early := c.LoadOrStore("/a.B/C", 1)
	assert.True(t, early)
	actual, early := c.LoadOrStore("/a.B/C", 2)
	assert.Equal(t, 1, actual)
	assert.False(t, early)
}
