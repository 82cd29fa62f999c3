package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestInFlightCheckDeniesMoreThanMaximum(t *testing.T) {
	var c inFlightCheck
	c.hedges.Store(MaxInFlight - 1)
	assert.Equal(t, None, c.deny(admission{}))
	c.hedges.Add(1)
	assert.Equal(t, observe.DeniedInFlight, c.deny(admission{}))
}
