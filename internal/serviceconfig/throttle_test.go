package serviceconfig_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

const throttling = `{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.5}}`

func TestATargetIsThrottledAtHalfOfItsTokens(t *testing.T) {
	var book serviceconfig.Book
	book.Set(parse(t, throttling), "a test")
	const one, other = "passthrough:///one", "passthrough:///other"
	bucket := book.Of(one).Throttle(one)
	for range 5 {
		assert.True(t, bucket.Open())
		bucket.Failed()
	}
	assert.False(t, bucket.Open(), "at half, not only below")
	assert.Same(t, bucket, book.Of(one).Throttle(one))
	assert.True(t, book.Of(other).Throttle(other).Open())
	assert.True(t, book.Of("").Throttle("").Open())
	bucket.Succeeded()
	assert.True(t, bucket.Open())

	for range 100 {
		bucket.Succeeded()
	}
	for range 5 {
		assert.True(t, bucket.Open(), "no more than the maximum is saved up")
		bucket.Failed()
	}
	assert.False(t, bucket.Open())
	for range 100 {
		bucket.Failed()
	}
	for range 11 {
		assert.False(t, bucket.Open())
		bucket.Succeeded()
	}
	assert.True(t, bucket.Open(), "no less than nothing is left")
}

func TestABucketStaysWhileItsTermsDo(t *testing.T) {
	var book serviceconfig.Book
	assert.True(t, book.Set(parse(t, throttling), "a test"))
	bucket := book.Of("").Throttle("")
	assert.False(t, book.Set(parse(t, throttling), "a test"), "nothing changes")
	assert.True(t, book.Set(parse(t, `{"methodConfig": [], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.5}}`), "a test"))
	assert.Same(t, bucket, book.Of("").Throttle(""))
	assert.True(t, book.Set(parse(t, `{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.6}}`), "a test"))
	assert.NotSame(t, bucket, book.Of("").Throttle(""))
	assert.True(t, book.Set(nil, "a test"))
	assert.Nil(t, book.Of("").Throttle(""))
	assert.True(t, book.Of("").Throttle("").Open())
}
