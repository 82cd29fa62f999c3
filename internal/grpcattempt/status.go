package grpcattempt

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ReadPushback reports whether a failed attempt asks for less load, by its status err or its trailer. The result wait
// is the time for which no hedges must be sent. It is 0 if the server states no time.
func ReadPushback(err error, trailer metadata.MD) (wait time.Duration, pushed bool) {
	if wait, _, found := parsePushback(trailer); found {
		return wait, true
	}
	return 0, status.Code(err) == codes.ResourceExhausted && !isMessageTooLarge(err)
}

// NextHedgeDelay returns the time until the next hedge that the trailer of a failed attempt demands (pushback, gRFC
// A6). It is 0 if the trailer demands no time. If stop is true, no further hedge may start.
func NextHedgeDelay(trailer metadata.MD) (after time.Duration, stop bool) {
	if after, stop, _ = parsePushback(trailer); stop {
		return 0, true
	}
	return after, false
}

// parsePushback parses the value of grpc-retry-pushback-ms in a trailer. The result found is false if the trailer has
// no such value.
//
// If stop is true, no further hedge may start. As in grpc-go, that is so if the value is negative, is not a 32-bit
// integer, or occurs more than once.
func parsePushback(trailer metadata.MD) (wait time.Duration, stop, found bool) {
	v := trailer["grpc-retry-pushback-ms"]
	if len(v) != 1 {
		return 0, len(v) > 1, len(v) > 1
	}
	ms, err := strconv.ParseInt(v[0], 10, 32) // on overflow, ParseInt returns the largest value and an error
	return time.Duration(max(ms, 0)) * time.Millisecond, err != nil || ms < 0, true
}

// isMessageTooLarge reports whether a RESOURCE_EXHAUSTED status means that a message is too large, and not that the
// server is overloaded. It recognises the texts of the gRPC implementations in Go, C, Java and .NET, because the status
// has no other sign of the reason. The phrases name the message, because a queue may also be larger than its maximum.
func isMessageTooLarge(err error) bool {
	text := status.Convert(err).Message()
	for _, phrase := range [...]string{
		"message larger than max", "after decompression larger than max", "message too large", "message exceeds max", "message exceeds the max",
	} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}
