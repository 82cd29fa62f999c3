package grpcattempt

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ReadPushback reports whether the status and trailer of a failed attempt ask for less load, and the time to wait; 0: the server names none.
func ReadPushback(err error, trailer metadata.MD) (wait time.Duration, pushed bool) {
	if wait, _, found := parsePushback(trailer); found {
		return wait, true
	}
	return 0, status.Code(err) == codes.ResourceExhausted && !isMessageTooLarge(err)
}

// NextHedgeDelay returns the time after which the next hedge may start, or that none may (gRFC A6, Pushback), as the trailer of a failed attempt says. It
// is 0 and false if the trailer has no such key.
func NextHedgeDelay(trailer metadata.MD) (after time.Duration, stop bool) {
	if after, stop, _ = parsePushback(trailer); stop {
		return 0, true
	}
	return after, false
}

// parsePushback parses grpc-retry-pushback-ms in a trailer. As in grpc-go, it stops hedging if the value is negative, no 32-bit integer, or given more
// than once.
func parsePushback(trailer metadata.MD) (wait time.Duration, stop, found bool) {
	v := trailer["grpc-retry-pushback-ms"]
	if len(v) != 1 {
		return 0, len(v) > 1, len(v) > 1
	}
	ms, err := strconv.ParseInt(v[0], 10, 32) // the largest that there is, if the trailer's is larger
	return time.Duration(max(ms, 0)) * time.Millisecond, err != nil || ms < 0, true
}

// isMessageTooLarge reports whether a ResourceExhausted refers to the size of a message, which does not indicate load. Only the text tells: a status
// of grpc itself and one of a server look alike. The phrases are those of the implementations in Go, C, Java and .NET.
func isMessageTooLarge(err error) bool {
	text := status.Convert(err).Message()
	for _, phrase := range [...]string{"larger than max", "message too large", "message exceeds"} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}
