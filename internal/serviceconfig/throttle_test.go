package serviceconfig_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

const throttlingConfig = `{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.5}}`

func TestThrottleDeniesHedgesAtHalfOfTokens(t *testing.T) {
	var registry serviceconfig.Registry
	registry.SetDefault(mustParse(t, throttlingConfig), "a test")
	const one, other = "passthrough:///one", "passthrough:///other"
	bucket := registry.ConfigFor(one).ThrottleFor(one)
	for range 5 {
		assert.True(t, bucket.AllowsHedge())
		bucket.RecordFailure()
	}
	assert.False(t, bucket.AllowsHedge(), "at half, not only below")
	assert.Same(t, bucket, registry.ConfigFor(one).ThrottleFor(one))
	assert.True(t, registry.ConfigFor(other).ThrottleFor(other).AllowsHedge())
	assert.True(t, registry.ConfigFor("").ThrottleFor("").AllowsHedge())
	bucket.RecordSuccess()
	assert.True(t, bucket.AllowsHedge())

	for range 100 {
		bucket.RecordSuccess()
	}
	for range 5 {
		assert.True(t, bucket.AllowsHedge(), "no more than the maximum is saved up")
		bucket.RecordFailure()
	}
	assert.False(t, bucket.AllowsHedge())
	for range 100 {
		bucket.RecordFailure()
	}
	for range 11 {
		assert.False(t, bucket.AllowsHedge())
		bucket.RecordSuccess()
	}
	assert.True(t, bucket.AllowsHedge(), "no less than nothing is left")
}

func TestRegistryKeepsThrottleWhileSettingsAreEqual(t *testing.T) {
	var registry serviceconfig.Registry
	assert.True(t, registry.SetDefault(mustParse(t, throttlingConfig), "a test"))
	bucket := registry.ConfigFor("").ThrottleFor("")
	assert.False(t, registry.SetDefault(mustParse(t, throttlingConfig), "a test"), "nothing changes")
	assert.True(t, registry.SetDefault(mustParse(t, `{"methodConfig": [], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.5}}`), "a test"))
	assert.Same(t, bucket, registry.ConfigFor("").ThrottleFor(""))
	assert.True(t, registry.SetDefault(mustParse(t, `{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.6}}`), "a test"))
	assert.NotSame(t, bucket, registry.ConfigFor("").ThrottleFor(""))
	assert.True(t, registry.SetDefault(nil, "a test"))
	assert.Nil(t, registry.ConfigFor("").ThrottleFor(""))
	assert.True(t, registry.ConfigFor("").ThrottleFor("").AllowsHedge())
}
