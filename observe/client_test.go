package observe_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/observe"
)

func TestClientsDropsClientsThatNoLongerExist(t *testing.T) {
	var c observe.Clients
	exists, calls := true, 0
	c.Add(func() ([]observe.KeyState, bool) { calls++; return make([]observe.KeyState, 2), exists })
	c.Add(func() ([]observe.KeyState, bool) { return make([]observe.KeyState, 1), true })
	assert.Len(t, c.KeyStates(), 3)
	exists = false
	c.KeyStates()
	assert.Equal(t, 2, calls)
	c.KeyStates()
	assert.Equal(t, 2, calls, "it is not asked again")
}

// TestClientsDropsClientsOfProgramThatReadsNoStates adds clients that are gone at once.
func TestClientsDropsClientsOfProgramThatReadsNoStates(t *testing.T) {
	var c observe.Clients
	calls := 0
	for range 10_000 {
		c.Add(func() ([]observe.KeyState, bool) { calls++; return nil, false })
	}
	assert.Greater(t, calls, 9_000, "most clients were asked, and found gone")
	assert.LessOrEqual(t, calls, 10_000, "none was asked twice")
}

func TestMergeKeepsLargestValuesAndDecidedAudit(t *testing.T) {
	k := observe.KeyState{KeyInfo: observe.KeyInfo{Host: "a"}, Delay: time.Second, Share: 0.1, Audit: observe.Audit{Verdict: observe.AuditSame, Pairs: 90}}
	off := observe.Audit{Verdict: observe.AuditOff, Pairs: 5}
	k.Merge(observe.KeyState{KeyInfo: observe.KeyInfo{Host: "b"}, Tokens: 2, Share: 0.2, Audit: off, Endpoints: []observe.EndpointState{{Endpoint: "x", Ejected: 1}}})
	k.Merge(observe.KeyState{Audit: observe.Audit{Verdict: observe.AuditOn, Pairs: 4}, Endpoints: []observe.EndpointState{{Endpoint: "x", Ejected: 1}, {Endpoint: "y"}}})
	assert.Equal(t, observe.KeyState{
		KeyInfo: observe.KeyInfo{Host: "a"}, Delay: time.Second, Tokens: 2, Share: 0.2, Audit: off,
		Endpoints: []observe.EndpointState{{Endpoint: "x", Ejected: 2}, {Endpoint: "y"}},
	}, k)
}
