package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The committed picture is what this code draws. To draw it anew:
// go run ./benchmark/simulate -picture docs/tail.svg
func TestPictureIsWhatTheCodeDraws(t *testing.T) {
	t.Parallel()
	long(t)
	const committed = "../../docs/tail.svg"
	file := filepath.Join(t.TempDir(), "tail.svg")
	_, stderr, code := sim(t, "-picture", file)
	require.Equal(t, ok, code, stderr)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	want, err := os.ReadFile(committed)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got), "the code draws another picture; run: go run ./benchmark/simulate -picture docs/tail.svg")
	assert.LessOrEqual(t, len(want), 25_000)
	require.NoError(t, xml.Unmarshal(want, new(struct{ XMLName xml.Name })))
	for _, s := range []string{"prefers-color-scheme:dark", `role="img"`} {
		assert.True(t, bytes.Contains(want, []byte(s)), "no %s in it", s)
	}
	for _, outside := range []string{"<script", "href", "@import", "url("} {
		assert.False(t, bytes.Contains(want, []byte(outside)), "%s in it", outside)
	}
}

func TestUnwritablePictureIsAnError(t *testing.T) {
	_, stderr, code := sim(t, "-picture", filepath.Join(t.TempDir(), "no", "such.svg"))
	assert.Equal(t, failed, code)
	assert.Contains(t, stderr, "-picture")
}
