package integration

import (
	"context"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gohedge/hedge"
)

func TestConnect(t *testing.T) {
	type (
		Request  = grpc_health_v1.HealthCheckRequest
		Response = grpc_health_v1.HealthCheckResponse
	)
	const procedure = "/grpc.health.v1.Health/Check"
	s := serve(t, connect.NewUnaryHandler(procedure, func(_ context.Context, r *connect.Request[Request]) (*connect.Response[Response], error) {
		status := grpc_health_v1.HealthCheckResponse_NOT_SERVING
		if r.Msg.Service == "shop" {
			status = grpc_health_v1.HealthCheckResponse_SERVING
		}
		return connect.NewResponse(&Response{Status: status}), nil
	}, connect.WithIdempotency(connect.IdempotencyNoSideEffects)))
	base := base(t)
	url := s.URL
	check := func(c *connect.Client[Request, Response]) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			resp, err := c.CallUnary(ctx, connect.NewRequest(&Request{Service: "shop"}))
			if err != nil {
				return "", err
			}
			return resp.Msg.Status.String(), nil
		}
	}
	plain := connect.NewClient[Request, Response](&http.Client{Transport: base}, url+procedure)

	t.Run("GET", func(t *testing.T) {
		transport := hedge.New(base)
		client := connect.NewClient[Request, Response](&http.Client{Transport: transport}, url+procedure,
			connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects)) // generated code declares the idempotency

		assert.Equal(t, "SERVING", same(t, s, transport, check(plain), check(client)))
	})
	t.Run("POST", func(t *testing.T) {
		transport := hedge.New(base, hedge.WithRoute("POST /grpc.health.v1.Health/Check", hedge.Policy{Hedgeable: true}))
		client := connect.NewClient[Request, Response](&http.Client{Transport: transport}, url+procedure)

		assert.Equal(t, "SERVING", same(t, s, transport, check(plain), check(client)))
	})
	t.Run("gRPC-Web", func(t *testing.T) {
		transport := hedge.New(base, hedge.WithRoute("POST "+procedure, hedge.Policy{Hedgeable: true}))
		client := connect.NewClient[Request, Response](&http.Client{Transport: transport}, url+procedure, connect.WithGRPCWeb())
		assert.Equal(t, "SERVING", same(t, s, transport, check(plain), check(client)))
	})
	t.Run("POST by default", func(t *testing.T) {
		client := connect.NewClient[Request, Response](&http.Client{Transport: hedge.New(base)}, url+procedure)
		once(t, s, func(ctx context.Context) error {
			_, err := check(client)(ctx)
			return err
		})
	})
}
