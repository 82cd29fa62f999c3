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
	assert.Equal(t, 22, calls, "slow calls in a row")
	assert.Equal(t, observe.DeniedSlow, c.deny(admission{}))
	assert.Equal(t, None, c.deny(admission{HedgeRequest: HedgeRequest{OtherBackend: true}}))

	before := c
	for _, r := range []Result{{Answered: true}, {Learned: true, Slow: true}} {
		c.record(&r)
	}
	assert.Equal(t, before, c, "no call ended before the delay by which it would count as slow")
	c.record(&Result{Learned: true})
	assert.Equal(t, None, c.deny(admission{}))
}
