package budget

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var epoch = time.Unix(1_700_000_000, 0)

func TestBucketTakesOwedTokensWhenNeeded(t *testing.T) {
	s := Sizing{Share: 0.1, EstimatedRPS: 100, Burst: 2 * time.Second}
	r := newSharedReserve(s, s.Share)
	b := newSharingBucket(s, r)
	assert.Equal(t, 10.0, b.Tokens(), "half of the reserve")
	b.AdaptSize(s, s.Share, epoch)
	assert.Equal(t, 10.0, b.Tokens())
	spent := 0
	for range 100 {
		for b.Spend() {
			spent++
		}
		b.AdaptSize(s, s.Share, epoch)
	}
	assert.Equal(t, 19, spent, "and never more than 20")
}

func TestReserveIgnoresRateOfShortTime(t *testing.T) {
	s := Sizing{Share: 0.1, EstimatedRPS: 100, Burst: 2 * time.Second, HasShortBucket: true}
	r := newSharedReserve(s, s.Share)
	first := newSharingBucket(s, r)
	for range 1000 {
		first.DepositAt(epoch)
	}
	first.AdaptSize(s, s.Share, epoch.Add(20*time.Millisecond)) // 50,000 per second
	assert.LessOrEqual(t, newSharingBucket(s, r).Tokens(), 20.0)
	spent := 0
	for range 100 {
		for b := newSharingBucket(s, r); b.Spend(); {
			spent++
		}
	}
	assert.LessOrEqual(t, spent, 20)
}

func TestRateIsKnownForSlightlyEarlierTime(t *testing.T) {
	s := Sizing{Share: 0.1, EstimatedRPS: 10, Burst: 2 * time.Second, HasShortBucket: true}
	r := newSharedReserve(s, s.Share)
	b, other := newSharingBucket(s, r), newSharingBucket(s, r)
	now := epoch
	for range 3 {
		for range 10_000 {
			b.DepositAt(now)
		}
		now = now.Add(10 * time.Second)
		b.AdaptSize(s, s.Share, now) // the bucket, and the reserve, begin to measure anew
	}
	before := b.Tokens()
	other.AdaptSize(s, s.Share, now.Add(-time.Millisecond)) // the end of a call whose plan is made later
	assert.Equal(t, 2.0, newSharingBucket(s, r).Tokens(), "the bucket starts full: the reserve still holds a burst of all keys")
	b.AdaptSize(s, s.Share, now.Add(-time.Millisecond))
	assert.Equal(t, before, b.Tokens(), "a bucket that two keys share")
}
