package hold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/internal/hold"
)

var epoch = time.Unix(1_700_000_000, 0)

func TestAHoldIsReadAsItWasWritten(t *testing.T) {
	h := hold.Hold{Slow: 0.8, Scale: 0.5, Push: 0.06, Pushed: true, PausedTo: epoch.Add(3 * time.Second)}
	d := decode.Decoder(h.Append(nil, epoch))
	got, ok := hold.Decode(&d, epoch)
	assert.True(t, ok)
	assert.Equal(t, h, got)
	assert.Empty(t, d)

	d = decode.Decoder(h.Append(nil, epoch.Add(time.Minute)))
	got, ok = hold.Decode(&d, epoch)
	assert.True(t, ok)
	assert.Zero(t, got.PausedTo, "the pause was over")
}

func FuzzDecode(f *testing.F) {
	h := hold.Hold{Slow: 0.8, Scale: 0.5, Push: 0.06, Pushed: true, PausedTo: epoch.Add(3 * time.Second)}
	f.Add(h.Append(nil, epoch))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decode.Decoder(b)
		h, ok := hold.Decode(&d, epoch)
		if !ok {
			return
		}
		assert.True(t, h.Slow >= 0 && h.Slow <= 1 && h.Push >= 0 && h.Push <= 1 && h.Scale >= hold.Floor && h.Scale <= 1)
		assert.False(t, h.PausedTo.After(epoch.Add(hold.MaxPause)))
	})
}
