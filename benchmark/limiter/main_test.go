package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In real time, so only what holds on any machine.
func TestEveryProtocolAndStrategyHasALine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run([]string{"-d", "1s", "-slow", "20", "-load", "0.5"}, &out))
	lines := strings.Split(out.String(), "\n")
	require.Len(t, lines, 1+9+1+3+1, out.String())
	for i, line := range lines[1:10] {
		cells := strings.Fields(line)
		assert.Equal(t, []string{protocols[i/3], strategies[i%3]}, cells[:2])
		assert.Equal(t, "0", cells[3], "no call fails: %s", line)
	}
	for i, said := range lines[11:14] {
		assert.Regexp(t, `^`+protocols[i]+`: p99 is [\d.]+ × .*promised: 0\.75.*\(1\.03\).*\(1\.1\)$`, said)
	}
	assert.Regexp(t, regexp.MustCompile(`(?m)^ *http2 +none +\d+ +0 .* 1\.000 +0 +0 +\d+ +[\d.]+$`), out.String())
}

func TestBadFlagsOfLimiterAreNamed(t *testing.T) {
	for _, args := range []string{"-load 1", "-load NaN", "-d 10ms", "-slow 0", "-protocol http3"} {
		name, value, _ := strings.Cut(args, " ")
		err := run([]string{name, value}, new(bytes.Buffer))
		require.ErrorContains(t, err, name)
		assert.ErrorContains(t, err, value)
	}
}
