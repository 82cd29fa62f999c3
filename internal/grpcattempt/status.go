package grpcattempt

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ReadPushback reports whether the status and the trailer of a failed attempt ask for less load. The result wait is the
// time for which to send no hedges; 0: the server names none.
func ReadPushback(err error, trailer metadata.MD) (wait time.Duration, pushed bool) {
	if wait, _, found := parsePushback(trailer); found {
		return wait, true
	}
	return 0, status.Code(err) == codes.ResourceExhausted && !isMessageTooLarge(err)
}

// NextHedgeDelay returns the time until the next hedge that the trailer of a failed attempt demands (gRFC A6,
// pushback). If stop is true, no further hedge may start. It returns 0 and false if the trailer demands nothing.
func NextHedgeDelay(trailer metadata.MD) (after time.Duration, stop bool) {
	if after, stop, _ = parsePushback(trailer); stop {
		return 0, true
	}
	return after, false
}

// parsePushback parses grpc-retry-pushback-ms in a trailer, and reports whether it was found. As in grpc-go, no further
// hedge may start (stop) if the value is negative, is no 32-bit integer, or occurs more than once.
func parsePushback(trailer metadata.MD) (wait time.Duration, stop, found bool) {
	v := trailer["grpc-retry-pushback-ms"]
	if len(v) != 1 {
		return 0, len(v) > 1, len(v) > 1
	}
	ms, err := strconv.ParseInt(v[0], 10, 32) // the largest that there is, if the trailer's is larger
	return time.Duration(max(ms, 0)) * time.Millisecond, err != nil || ms < 0, true
}

// isMessageTooLarge reports whether a RESOURCE_EXHAUSTED status means that a message is too large, which is no sign of
// load. It recognises the texts of the gRPC implementations in Go, C, Java and .NET, because the status has no other
// mark.
func isMessageTooLarge(err error) bool {
	text := status.Convert(err).Message()
	for _, phrase := range [...]string{"larger than max", "message too large", "message exceeds"} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}
