//go:build !hedge_nogrpc

package hedgeotel_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/grpctest"
)

// TestNoLoserIsAnError has calls whose primary loses. When it is cancelled, it ends with each of the errors
// that transports return.
func TestNoLoserIsAnError(t *testing.T) {
	overHTTP := func(end func(context.Context) error) func(*testing.T, *telemetry) func(context.Context) error {
		return func(_ *testing.T, r *telemetry) func(context.Context) error {
			transport := hedge.New(doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
				if a, _ := hedge.AttemptFromContext(req.Context()); a.Number == 0 {
					<-req.Context().Done()
					return nil, end(req.Context())
				}
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
			}), hedge.WithObserver(r), hedge.WithMaxHedges(1))
			return func(ctx context.Context) error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop.test", http.NoBody)
				if err != nil {
					return err
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return err
				}
				return resp.Body.Close()
			}
		}
	}
	overGRPC := func(balancing string, stream bool) func(*testing.T, *telemetry) func(context.Context) error {
		return func(t *testing.T, r *telemetry) func(context.Context) error {
			f := grpctest.NewBackends(t, 2)
			client, _ := f.Client(t, balancing, hedge.NewInterceptor(hedge.WithMethods("/*"), hedge.WithMaxHedges(1), hedge.WithObserver(r)))
			for i := range f.Delays { // both, because the balancer picks
				f.Delays[i].Store(int64(time.Second))
			}
			call := grpctest.UnaryCaller(client)
			if stream {
				call = grpctest.StreamCaller(client)
			}
			return func(ctx context.Context) error {
				time.AfterFunc(15*ms, func() {
					for i := range f.Delays {
						f.Delays[i].Store(int64(5 * ms))
					}
				})
				return call(ctx)
			}
		}
	}
	for name, newCall := range map[string]func(*testing.T, *telemetry) func(context.Context) error{
		"HTTP/1.1":       overHTTP(context.Cause),
		"HTTP/2":         overHTTP(context.Context.Err),
		"HTTP, broken":   overHTTP(func(context.Context) error { return errDown }),
		"gRPC":           overGRPC(`{"loadBalancingConfig":[{"round_robin":{}}]}`, false),
		"gRPC elsewhere": overGRPC(grpctest.HedgeElsewhereConfig("round_robin"), false),
		"gRPC stream":    overGRPC(grpctest.HedgeElsewhereConfig("round_robin"), true),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTelemetry(t)
				call := newCall(t, r)
				ctx, caller := r.tracer.Start(t.Context(), "caller")
				require.NoError(t, call(hedge.WithDelay(ctx, 20*ms)))
				caller.End()
				time.Sleep(time.Minute) // losers over HTTP/1.1 may finish
				synctest.Wait()
				lost := 0
				for _, span := range r.spans.Ended() {
					assert.NotEqual(t, codes.Error, span.Status().Code, span.Name())
					if attributeMap(span.Attributes())["hedge.outcome"] == "lost" {
						lost++
					}
				}
				assert.Equal(t, 1, lost)
			})
		})
	}
}
