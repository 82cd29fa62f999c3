package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/decode"
)

var written = time.Unix(1_700_000_000, 0)

func TestBrakeStateDecodesAsAppended(t *testing.T) {
	h := brakeState{Slow: 0.8, Scale: 0.5, Push: 0.06, Pushed: true, PausedTo: written.Add(3 * time.Second)}
	d := decode.Decoder(h.append(nil, written))
	got, ok := decodeBrakeState(&d, written)
	assert.True(t, ok)
	assert.Equal(t, h, got)
	assert.Empty(t, d)

	d = decode.Decoder(h.append(nil, written.Add(time.Minute)))
	got, ok = decodeBrakeState(&d, written)
	assert.True(t, ok)
	assert.Zero(t, got.PausedTo, "the pause was over")
}

func FuzzDecodeBrakeState(f *testing.F) {
	h := brakeState{Slow: 0.8, Scale: 0.5, Push: 0.06, Pushed: true, PausedTo: written.Add(3 * time.Second)}
	f.Add(h.append(nil, written))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decode.Decoder(b)
		h, ok := decodeBrakeState(&d, written)
		if !ok {
			return
		}
		assert.True(t, h.Slow >= 0 && h.Slow <= 1 && h.Push >= 0 && h.Push <= 1 && h.Scale >= minBudgetScale && h.Scale <= 1)
		assert.False(t, h.PausedTo.After(written.Add(maxPause)))
	})
}
