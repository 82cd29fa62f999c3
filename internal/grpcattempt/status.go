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
	if v := trailer["grpc-retry-pushback-ms"]; len(v) > 0 {
		ms, _ := strconv.ParseUint(v[0], 10, 31) // gRFC A6: negative or not a number means stop
		return time.Duration(ms) * time.Millisecond, true
	}
	return 0, status.Code(err) == codes.ResourceExhausted && !tooLarge(err)
}

// NextAfter returns what a server that failed says of the next hedge (gRFC A6, Pushback): it is to be sent after that long, or none
// is. It is 0 and false if the server says nothing.
func NextAfter(trailer metadata.MD) (after time.Duration, stop bool) {
	v := trailer["grpc-retry-pushback-ms"]
	if len(v) == 0 {
		return 0, false
	}
	ms, err := strconv.ParseInt(v[0], 10, 32)
	if err != nil || ms < 0 {
		return 0, true
	}
	return time.Duration(ms) * time.Millisecond, false
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
