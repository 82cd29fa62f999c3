package limiter_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
)

// callOver returns the HTTP request of a gRPC call.
func callOver(major int, contentType string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/grpc.health.v1.Health/Check", nil)
	r.ProtoMajor = major
	r.Header.Set("Content-Type", contentType)
	return r
}

func TestHealthCheckOtherThanGRPCUsesSlot(t *testing.T) {
	for _, c := range []struct {
		major  int
		of     string
		worked int64
	}{
		{2, "application/grpc", 0},
		{2, "application/grpc+proto", 0},
		{2, "application/grpc;charset=utf-8", 0},
		{2, "application/grpc-web", 1},
		{2, "application/grpcx", 1},
		{2, "application/json", 1},
		{2, "", 1},
		{1, "application/grpc", 1},
		{3, "application/grpc", 1},
	} {
		l := hedge.NewLimiter(1)
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), callOver(c.major, c.of))
		assert.Equal(t, c.worked, l.Snapshot().Worked, "HTTP/%d, %s", c.major, c.of)
	}
}

func TestWithLimitedHealthChecksUsesSlotOverHTTP(t *testing.T) {
	l := hedge.NewLimiter(1, hedge.WithLimitedHealthChecks())
	l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), callOver(2, "application/grpc"))
	assert.EqualValues(t, 1, l.Snapshot().Worked)
}
