package evicted

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestStatesKeepStateOfManyCallsWithinLimit(t *testing.T) {
	var s States[string, int]
	s.Put("busy", 1, 100_000, 0, 32)
	for n := range 1000 {
		s.Put(fmt.Sprint(n), n, 30, 0, 32)
		assert.LessOrEqual(t, len(s.all), 32)
	}
	v, calls, ok := s.Take("busy")
	assert.Equal(t, 1, v)
	assert.EqualValues(t, 100_000, calls)
	assert.True(t, ok)
	_, _, ok = s.Take("busy")
	assert.False(t, ok, "the state was taken")
}

func TestStatesHalveWorthEachHour(t *testing.T) {
	var s States[string, int]
	s.Put("old", 1, 1<<10, 0, 32)
	for n := range 1000 {
		s.Put(fmt.Sprint(n), n, 1<<4, 10*time.Hour, 32)
	}
	_, _, ok := s.Take("old")
	assert.False(t, ok)
}
