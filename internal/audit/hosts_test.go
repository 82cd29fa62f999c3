package audit

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/observe"
)

func TestHostsKeepVerdictsOfHostsWithoutKeys(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	hs := NewHostAudits()
	a := hs.AddKey("a")
	require.Same(t, a, hs.AddKey("a"))
	a.ImportState(&State{Trial: 1, Report: observe.Audit{Verdict: observe.AuditOff}}, now)
	hs.RemoveKey("a", 10, 0, 2)
	assert.Equal(t, 1, hs.Len())
	hs.RemoveKey("a", 10, 0, 2)
	assert.Zero(t, hs.Len())

	b, n := hs.AppendVerdicts(nil, now, maxStateBytes)
	require.EqualValues(t, 1, n)
	d := decode.Decoder(append(binary.AppendUvarint(nil, n), b...))
	all, err := DecodeVerdicts(&d, 2)
	require.NoError(t, err)
	other := NewHostAudits()
	other.ImportVerdicts(all, now, 0, 2)
	assert.Equal(t, observe.AuditOff, other.AddKey("a").Verdict())

	hs.ForgetEvicted(func(host string) bool { return host == "b" })
	assert.Equal(t, observe.AuditOff, hs.AddKey("a").Verdict())
	hs.RemoveKey("a", 0, 0, 2)
	hs.ForgetEvicted(func(host string) bool { return host == "a" })
	assert.Equal(t, observe.AuditTrying, hs.AddKey("a").Verdict())
}

func TestNilHostsAreNotAudited(t *testing.T) {
	var hs *HostAudits
	assert.Nil(t, hs.AddKey("a"))
	hs.RemoveKey("a", 1, 0, 2)
	hs.ForgetEvicted(nil)
	hs.ImportVerdicts([]HostVerdict{{host: "a"}}, time.Now(), 0, 2)
	_, n := hs.AppendVerdicts(nil, time.Now(), maxStateBytes)
	assert.Zero(t, n)
}
