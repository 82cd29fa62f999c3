package grpcattempt_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/grpcattempt"
)

// TestDeadlineIsTimeoutRecognisesTimeoutOfInterceptor has calls without a timeout in the service config. It
// distinguishes the timeout of an interceptor from DEADLINE_EXCEEDED of a server. Without an interceptor, each status
// is a server's.
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
		assert.Equal(t, c.ended, grpcattempt.Deadline{MayBeEarlier: true}.IsTimeout(c.err, c.trailer), name)
		assert.Equal(t, c.err == context.DeadlineExceeded, grpcattempt.Deadline{}.IsTimeout(c.err, c.trailer), name)
	}
}

func TestMethodDeadlineMayBeEarlierWithUnknownTimeouts(t *testing.T) {
	for target, want := range map[string]bool{"passthrough:///xds:1": false, "xds:///host": true, "google-c2p:///host": true} {
		cc, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		assert.Equal(t, want, grpcattempt.MethodDeadline(cc, "/a.B/C", time.Now(), false).MayBeEarlier, target)
		assert.True(t, grpcattempt.MethodDeadline(cc, "/a.B/C", time.Now(), true).MayBeEarlier)
		require.NoError(t, cc.Close())
	}
	assert.Equal(t, grpcattempt.Deadline{}, grpcattempt.MethodDeadline(nil, "/a.B/C", time.Now(), false))
}
