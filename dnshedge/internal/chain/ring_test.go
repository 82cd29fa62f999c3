package chain

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A clock that was years ahead when the machine started makes all bogus. Set right, it must not be so for years.
func TestWhatWasFoundOutInTheFutureIsNotKnown(t *testing.T) {
	c := New(Config{MaxBytes: 1 << 16})
	c.keep(&flight{zone: &Zone{Name: "."}, ring: bogus(&validate.Reason{Text: "expired"})})
	now := time.Now()
	assert.NotNil(t, c.fresh(".", now.Add(time.Second)))
	assert.Nil(t, c.fresh(".", now.Add(-time.Hour)), "the clock went back")
	assert.Nil(t, c.fresh(".", now.Add(time.Hour)))
}

// Whoever has many zones chooses how large their keys are.
func TestRingsTakeNoMoreThanTheirBytes(t *testing.T) {
	const most = 64 << 10
	c := New(Config{MaxBytes: most})
	for i := range 1000 {
		r := insecure(nil, time.Now())
		r.size = int64(i * 7)
		c.keep(&flight{zone: &Zone{Name: fmt.Sprintf("z%d.", i%700)}, ring: r})
		sum := int64(0)
		for _, r := range c.rings {
			sum += r.size
		}
		assert.Equal(t, sum, c.bytes)
		assert.LessOrEqual(t, sum, int64(most))
	}
	assert.NotEmpty(t, c.rings)
}
