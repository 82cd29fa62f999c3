package decode_test

import (
	"bytes"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/decode"
)

var (
	errForeign = errors.New("foreign")
	letters    = decode.Envelope{Name: "hedge letters ", Foreign: errForeign, Max: 1 << 20}
	epoch      = time.Unix(1_700_000_000, 0)
)

func TestEnvelopeKeepsContent(t *testing.T) {
	b := decode.AppendChecksum(decode.AppendBytes(letters.Header(epoch), "abc"))
	passed, d, err := letters.Open(bytes.NewReader(b), epoch.Add(time.Hour))
	require.NoError(t, err)
	assert.Equal(t, time.Hour, passed)
	assert.Equal(t, "abc", string(d.Bytes(3)))
	assert.Empty(t, d)
}

// TestOpenAcceptsExportFromClockAhead opens exports of clocks that are ahead, up to the largest time that an export can hold.
func TestOpenAcceptsExportFromClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{1, time.Hour, 48 * time.Hour, time.Unix(0, math.MaxInt64).Sub(epoch)} {
		passed, _, err := letters.Open(bytes.NewReader(decode.AppendChecksum(letters.Header(epoch.Add(ahead)))), epoch)
		require.NoError(t, err, ahead)
		assert.Zero(t, passed, ahead)
	}
}

func TestOpenNamesFaultOfEnvelope(t *testing.T) {
	right := decode.AppendChecksum(letters.Header(epoch))
	changed := bytes.Clone(right)
	changed[len(changed)-1] ^= 1
	other := bytes.Replace(right, []byte(" 1\n"), []byte(" 2\n"), 1)
	for want, b := range map[string][]byte{
		"foreign": []byte("something else"),
		`the export is of version "2", and only "1" is known`: decode.AppendChecksum(other),
		decode.ErrDamaged.Error():                             changed,
		"the export is larger than 1 MiB":                     make([]byte, 1<<20+1),
		"the export is 24h0m1s old, more than":                decode.AppendChecksum(letters.Header(epoch.Add(-decode.MaxAge - time.Second))),
	} {
		_, _, err := letters.Open(bytes.NewReader(b), epoch)
		require.ErrorContains(t, err, want)
	}
	for n := range right {
		_, _, err := letters.Open(bytes.NewReader(right[:n]), epoch)
		require.Error(t, err, "the first %d bytes", n)
	}
}
