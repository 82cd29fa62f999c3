package grpcattempt_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/grpcattempt"
)

func TestParsePushbackMatchesGRPC(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		values []string
		wait   time.Duration // for the key
		pushed bool
		after  time.Duration // for the next hedge of the call
		stop   bool
	}{
		{nil, 0, false, 0, false},
		{[]string{"0"}, 0, true, 0, false},
		{[]string{"250"}, 250 * time.Millisecond, true, 250 * time.Millisecond, false},
		{[]string{"-1"}, 0, true, 0, true},
		{[]string{""}, 0, true, 0, true},
		{[]string{"soon"}, 0, true, 0, true},
		{[]string{"1.5"}, 0, true, 0, true},
		{[]string{"250", "250"}, 0, true, 0, true},
	} {
		trailer := metadata.MD{"grpc-retry-pushback-ms": test.values}
		wait, pushed := grpcattempt.ReadPushback(status.Error(codes.Unavailable, ""), trailer)
		assert.Equal(t, test.wait, wait, "%q", test.values)
		assert.Equal(t, test.pushed, pushed, "%q", test.values)
		after, stop := grpcattempt.NextHedgeDelay(trailer)
		assert.Equal(t, test.after, after, "%q", test.values)
		assert.Equal(t, test.stop, stop, "%q", test.values)
	}
	tooLong := metadata.Pairs("grpc-retry-pushback-ms", "99999999999999999999")
	wait, _ := grpcattempt.ReadPushback(nil, tooLong)
	assert.Greater(t, wait, 20*day)
	_, stop := grpcattempt.NextHedgeDelay(tooLong)
	assert.True(t, stop)
}

func TestReadPushbackDistinguishesLoadFromMessageSize(t *testing.T) {
	for text, want := range map[string]bool{
		"grpc: received message larger than max (5 vs. 4)":              false, // Go
		"grpc: received message after decompression larger than max 4":  false, // Go
		"grpc: message after decompression larger than max (5 vs. 4)":   false, // Go
		"trying to send message larger than max (5 vs. 4)":              false, // Go
		"grpc: message too large (5 bytes)":                             false, // Go
		"Received message larger than max (5 vs. 4)":                    false, // C
		"gRPC message exceeds maximum size 4: 5":                        false, // Java
		"Decompressed gRPC message exceeds maximum size 4":              false, // Java
		"Received message exceeds the maximum configured message size.": false, // .NET
		"request rate larger than max":                                  true,
		"pending queue larger than max (1000)":                          true,
		"message exceeds the tenant's quota":                            true,
	} {
		_, pushed := grpcattempt.ReadPushback(status.Error(codes.ResourceExhausted, text), nil)
		assert.Equal(t, want, pushed, text)
	}
}
