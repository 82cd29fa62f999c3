package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestOutageCheckDeniesWhileMostCallsAreSlow(t *testing.T) {
	var c outageCheck
	calls := 0
	for ; !c.isOutage(); calls++ {
		assert.Equal(t, None, c.deny(admission{}))
		c.recordSlowCall()
	}
	assert.Equal(t, 22, calls, "consecutive slow calls")
	assert.Equal(t, observe.DeniedSlow, c.deny(admission{}))
	assert.Equal(t, None, c.deny(admission{HedgeRequest: HedgeRequest{OtherBackend: true}}))

	before := c
	for _, r := range []Result{{Answered: true}, {HasSlowMarker: true, Slow: true}} {
		c.record(&r)
	}
	assert.Equal(t, before, c, "all calls reached the slow marker")
	c.record(&Result{HasSlowMarker: true})
	assert.Equal(t, None, c.deny(admission{}))
}
