package grpcattempt_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/grpcattempt"
)

// TestDeadlineIsTimeoutRecognisesTimeoutOfInterceptor has calls without a timeout in the service config. It
// distinguishes the timeout of an interceptor from DEADLINE_EXCEEDED of a server.
func TestDeadlineIsTimeoutRecognisesTimeoutOfInterceptor(t *testing.T) {
	onlyStatus := metadata.Pairs("content-type", "application/grpc")
	for name, c := range map[string]struct {
		err     error
		trailer metadata.MD
		ended   bool
	}{
		"the error of a context":            {context.DeadlineExceeded, nil, true},
		"the client's own status":           {status.FromContextError(context.DeadlineExceeded).Err(), nil, true},
		"a reset after the deadline":        {status.Error(codes.DeadlineExceeded, "stream terminated by RST_STREAM with error code: CANCEL"), nil, true},
		"a reset before a deadline":         {status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL"), nil, false},
		"a server's status alone":           {status.FromContextError(context.DeadlineExceeded).Err(), onlyStatus, false},
		"a server's own words":              {status.Error(codes.DeadlineExceeded, "too busy"), nil, false},
		"a server that reports another end": {status.Error(codes.Unavailable, "context deadline exceeded"), nil, false},
	} {
		assert.Equal(t, c.ended, grpcattempt.Deadline{}.IsTimeout(c.err, c.trailer), name)
	}
}
