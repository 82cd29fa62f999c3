package recursor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestAskingWhoWaitsLooksAtEachLookupOnce would not end if it looked at every way through
// lookups that need two others each.
func TestAskingWhoWaitsLooksAtEachLookupOnce(t *testing.T) {
	var layer []*node
	for range 100 {
		next := []*node{{waits: make(map[*node]wait)}, {waits: make(map[*node]wait)}}
		for _, f := range next {
			for _, g := range layer {
				f.await(g, false)
			}
		}
		layer = next
	}
	last := new(node)
	assert.False(t, layer[0].reaches(last, make(map[*node]bool)))
	for f := layer[0]; ; {
		if len(f.waits) == 0 {
			f.await(last, false)
			break
		}
		for g := range f.waits {
			f = g
		}
	}
	assert.True(t, layer[1].reaches(last, make(map[*node]bool)))
}
