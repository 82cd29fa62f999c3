package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/decode"
)

var written = time.Unix(1_700_000_000, 0)

func TestSafetyStateDecodesAsAppended(t *testing.T) {
	h := safetyState{outageCheck{0.8}, pushbackCheck{0.06, true, written.Add(3 * time.Second)}, 0.5}
	d := decode.Decoder(h.appendTo(nil, written))
	got, ok := decodeSafetyState(&d, written)
	assert.True(t, ok)
	assert.Equal(t, h, got)
	assert.Empty(t, d)

	d = decode.Decoder(h.appendTo(nil, written.Add(time.Minute)))
	got, ok = decodeSafetyState(&d, written)
	assert.True(t, ok)
	assert.Zero(t, got.pushback.waitUntil, "the pause was over")
}

func FuzzDecodeSafetyState(f *testing.F) {
	h := safetyState{outageCheck{0.8}, pushbackCheck{0.06, true, written.Add(3 * time.Second)}, 0.5}
	f.Add(h.appendTo(nil, written))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decode.Decoder(b)
		h, ok := decodeSafetyState(&d, written)
		if !ok {
			return
		}
		assert.True(t, h.outage.slowShare >= 0 && h.outage.slowShare <= 1 && h.pushback.share >= 0 && h.pushback.share <= 1 && h.scale >= minBudgetScale && h.scale <= 1)
		assert.False(t, h.pushback.waitUntil.After(written.Add(maxPause)))
	})
}
