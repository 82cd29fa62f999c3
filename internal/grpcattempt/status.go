package grpcattempt

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// PushedBack reports whether a server that failed pushed back, and for how long; 0: it did not say.
func PushedBack(err error, trailer metadata.MD) (wait time.Duration, pushed bool) {
	if wait, _, found := readPushback(trailer); found {
		return wait, true
	}
	return 0, status.Code(err) == codes.ResourceExhausted && !tooLarge(err)
}

// NextAfter returns what a server that failed says of the next hedge (gRFC A6, Pushback): it is to be sent after that long, or none
// is. It is 0 and false if the server says nothing.
func NextAfter(trailer metadata.MD) (after time.Duration, stop bool) {
	if after, stop, _ = readPushback(trailer); stop {
		return 0, true
	}
	return after, false
}

// readPushback returns the time that grpc-retry-pushback-ms in a trailer names, and whether it stops hedging. As in grpc-go, it does if
// it is negative, no integer of 32 bits, or given more than once.
func readPushback(trailer metadata.MD) (wait time.Duration, stop, found bool) {
	v := trailer["grpc-retry-pushback-ms"]
	if len(v) != 1 {
		return 0, len(v) > 1, len(v) > 1
	}
	ms, err := strconv.ParseInt(v[0], 10, 32) // the largest that there is, if the trailer's is larger
	return time.Duration(max(ms, 0)) * time.Millisecond, err != nil || ms < 0, true
}

// tooLarge reports whether a ResourceExhausted is about the size of a message, which
// says nothing of the server's load. The text is all there is to tell by: a status that grpc
// makes here and one that a server sends look alike, and a server has the same limits.
// The phrases are those of grpc-go, and of gRPC's other implementations in C, Java and .NET.
func tooLarge(err error) bool {
	text := status.Convert(err).Message()
	for _, phrase := range [...]string{"larger than max", "message too large", "message exceeds"} {
		if strings.Contains(text, phrase) {
			return true
		}
	}
	return false
}
