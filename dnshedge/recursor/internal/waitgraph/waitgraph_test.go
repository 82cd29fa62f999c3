package waitgraph

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestNodeVisitsEachLookupOnce has lookups that wait for two others each. It would not end if the search followed every
// path.
func TestNodeVisitsEachLookupOnce(t *testing.T) {
	var layer []*Flight[int]
	for range 100 {
		next := []*Flight[int]{{}, {}}
		for _, f := range next {
			for _, g := range layer {
				g.addWait(Wait{By: &f.Node})
			}
		}
		layer = next
	}
	last := new(Flight[int])
	assert.False(t, layer[0].hasPathTo(&last.Node, make(map[*Node]bool)))
	for f := &layer[0].Node; ; {
		if len(f.waitsFor) == 0 {
			last.addWait(Wait{By: f})
			break
		}
		for g := range f.waitsFor {
			f = g
		}
	}
	assert.True(t, layer[1].hasPathTo(&last.Node, make(map[*Node]bool)))
}
