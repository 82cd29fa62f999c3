package chain

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A clock that was years ahead when the machine started makes all bogus. Set right, it must not be so for years.
func TestKeyCacheIgnoresEntryFromFuture(t *testing.T) {
	c := NewValidator(Config{MaxBytes: 1 << 16})
	c.storeLookupResult(&keyLookup{zone: &Zone{Name: "."}, result: newBogusEntry(&validate.Reason{Text: "expired"})})
	now := time.Now()
	assert.NotNil(t, c.cachedEntry(".", now.Add(time.Second)))
	assert.Nil(t, c.cachedEntry(".", now.Add(-time.Hour)), "the clock went back")
	assert.Nil(t, c.cachedEntry(".", now.Add(time.Hour)))
}

// Who has seen that nothing is known may be late: a flight may have landed since.
func TestKeyLookupResultIsReused(t *testing.T) {
	begun := 0
	c := NewValidator(Config{MaxBytes: 1 << 16, Go: func(func(context.Context)) { begun++ }})
	z := &Zone{Name: "example."}
	f, mine := c.joinKeyLookup(nil, z, nil)
	require.True(t, mine)
	require.Equal(t, 1, begun)
	other, mine := c.joinKeyLookup(nil, z, nil)
	assert.Same(t, f, other, "it still flies")
	assert.False(t, mine)
	f.result = newInsecureEntry(nil, time.Now(), 60)
	c.storeLookupResult(f)
	for range 2 {
		late, mine := c.joinKeyLookup(nil, z, nil)
		require.Equal(t, 1, begun, "a flight too many")
		assert.False(t, mine)
		<-late.done
		assert.Same(t, f.result, late.result)
	}
	_, mine = c.joinKeyLookup(nil, z, f.result)
	assert.True(t, mine, "he who has seen it wants another one")
	assert.Equal(t, 2, begun)
}

// Whoever has many zones chooses how large their keys are.
func TestKeyCacheIsBounded(t *testing.T) {
	const most = 64 << 10
	c := NewValidator(Config{MaxBytes: most})
	for i := range 1000 {
		r := newInsecureEntry(nil, time.Now())
		r.size = int64(i * 7)
		c.storeLookupResult(&keyLookup{zone: &Zone{Name: fmt.Sprintf("z%d.", i%700)}, result: r})
		sum := int64(0)
		for _, r := range c.keyCache {
			sum += r.size
		}
		assert.Equal(t, sum, c.bytes)
		assert.LessOrEqual(t, sum, int64(most))
	}
	assert.NotEmpty(t, c.keyCache)
}
