package recursor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWaitNodeVisitsEachLookupOnce has lookups that wait for two others each. It would not end if the search
// followed every path.
func TestWaitNodeVisitsEachLookupOnce(t *testing.T) {
	var layer []*waitNode
	for range 100 {
		next := []*waitNode{{waitsFor: make(map[*waitNode]waitCount)}, {waitsFor: make(map[*waitNode]waitCount)}}
		for _, f := range next {
			for _, g := range layer {
				f.addWait(g, false)
			}
		}
		layer = next
	}
	last := new(waitNode)
	assert.False(t, layer[0].waitsForNode(last, make(map[*waitNode]bool)))
	for f := layer[0]; ; {
		if len(f.waitsFor) == 0 {
			f.addWait(last, false)
			break
		}
		for g := range f.waitsFor {
			f = g
		}
	}
	assert.True(t, layer[1].waitsForNode(last, make(map[*waitNode]bool)))
}
