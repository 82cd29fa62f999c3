package main

import (
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
)

func TestRunReportsInvalidFlagsBeforeListening(t *testing.T) {
	for want, args := range map[string]string{
		"Client.Hosts: stat /no/such/file":               "-hosts /no/such/file",
		"Hedge.BudgetPercent is 200":                     "-budget 200",
		"Cache.MaxBytes is -1":                           "-cache -1",
		"dnsforward: -timeout is 0; want more":           "-timeout 0",
		"-listen-tls and -listen-https need -cert":       "-listen-tls 127.0.0.1:0",
		"Limits is {QuestionsPerSecond:0 Conns:-1 ":      "-connections -1",
		"dnsforward: -cert needs -listen-tls or":         "-cert x -key y",
		"dnsforward: -key needs -listen-tls or":          "-key y",
		"dnsforward: -max-stale needs a cache":           "-cache 0 -max-stale 1h",
		"dnsforward: -max-negative needs a cache":        "-cache 0 -max-negative 1h",
		`dnsforward: unexpected argument "127.0.0.1:53"`: "127.0.0.1:53",
	} {
		flags := flag.NewFlagSet("dnsforward", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		err := run(flags, append([]string{"-listen", "an address at which nothing can listen"}, strings.Fields(args)...))
		assert.ErrorContains(t, err, want, args)
	}
}

// A Client takes 0 for its defaults, and a Config nil.
func TestZeroFlagsAreZero(t *testing.T) {
	o, err := parsed(strings.Fields("-budget 0 -max-negative 0 -max-stale 0 -connections 0 -client-connections 0 -sockets 0")...)
	require.NoError(t, err)
	assert.EqualValues(t, dnshedge.NoBudget, o.Client.Hedge.BudgetPercent)
	assert.Negative(t, o.Client.Cache.MaxNegativeTTL)
	assert.Negative(t, o.Client.Cache.MaxStale)
	assert.Equal(t, &forward.Limits{}, o.Limits)
	o, err = parsed("-cache", "0")
	require.NoError(t, err)
	assert.Nil(t, o.Client.Cache)

	o, err = parsed()
	require.NoError(t, err)
	assert.Equal(t, &dnshedge.Cache{MaxBytes: 64 << 20, MaxNegativeTTL: time.Hour, MaxStale: 24 * time.Hour}, o.Client.Cache)
	assert.Equal(t, forward.DefaultLimits(), *o.Limits)
	assert.Equal(t, []string{"127.0.0.1:5300"}, o.Listen)
}

func TestRouteFlagAddsClientPerDomain(t *testing.T) {
	o, err := parsed(strings.Fields("-route corp.example=udp://192.0.2.1 -route corp.example=tls://192.0.2.2 -route 10.in-addr.arpa= -timeout 3s")...)
	require.NoError(t, err)
	require.Len(t, o.Client.Routes, 2)
	corp := o.Client.Routes["corp.example"].(*dnshedge.Client)
	assert.Len(t, corp.Upstreams, 2)
	assert.Equal(t, 3*time.Second, corp.Timeout)
	assert.Nil(t, o.Client.Routes["10.in-addr.arpa"])
	for _, s := range []string{"", "corp.example", "=192.0.2.1", "corp.example=x"} {
		_, err := parsed("-route", s)
		assert.Error(t, err, s)
	}
}
