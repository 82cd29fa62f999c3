package engine

import (
	"time"

	"github.com/gohedge/hedge/internal/budget"
)

// A purse is what pays for the hedges of a key. Its fields do not change.
type purse struct {
	bucket *budget.Bucket // may be shared with other keys
	alone  bool           // it is not shared
	route  *budget.Bucket // of a route with a share of its own, which pays as well; else nil
	share  float64        // that share
}

// newPurse returns the purse of a key under the configuration. It shares the host's bucket, if that is
// not nil; share is a route's own, or 0.
func newPurse(c *Config, host *budget.Bucket, share float64) (p purse) {
	switch {
	case c.Shared != nil:
		p.bucket = c.Shared
	case host != nil:
		p.bucket = host
	default:
		p.bucket, p.alone = budget.NewSized(c.sizing()), !c.PerHost
	}
	if share > 0 {
		p.route, p.share = budget.NewRoute(c.sizing(), share), share
	}
	return p
}

// spend takes the tokens for a hedge, or none. The caller holds the key's mu, so that nobody else asks the route's bucket.
func (p *purse) spend(now time.Time, c *budget.Ceiling) bool {
	if p.route != nil && !p.route.Pays() || !c.Spend(now, p.bucket) {
		return false
	}
	if p.route != nil {
		p.route.Spend()
	}
	return true
}

// giveBack returns what spend took.
func (p *purse) giveBack(now time.Time, c *budget.Ceiling) {
	c.GiveBack(now, p.bucket)
	if p.route != nil {
		p.route.GiveBack()
	}
}

// halfFull reports whether all that pays is at least half full: a bucket that
// is spent as it is earned stays exhausted.
func (p *purse) halfFull(now time.Time, c *budget.Ceiling) bool {
	return p.bucket.HalfFull() && (p.route == nil || p.route.HalfFull()) && c.HalfFull(now)
}

// follow sizes the buckets for the configuration and the measured rate, and returns the share that pays.
func (p *purse) follow(c *Config, now time.Time) (share float64) {
	share = c.Share
	if c.Shared == nil {
		p.bucket.Follow(c.sizing(), c.Share, now)
	}
	if p.route != nil {
		share = min(share, p.share)
		p.route.Follow(c.sizing(), p.share, now)
	}
	return share
}
