//go:build !hedge_nogrpc

package hedge

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
)

// What the trailer says of a Limiter. It is not in the header: with a header a call is
// committed, and gRPC does not retry it any more (gRFC A6).
var (
	limitTrailer   = metadata.Pairs(limitHeader, "1")
	refusedTrailer = metadata.Pairs(refusedHeader, "1")
)

// UnaryServer returns an interceptor that lets unary calls through. It belongs before
// interceptors that do work, and after those that measure latency.
func (l *Limiter) UnaryServer() grpc.UnaryServerInterceptor {
	l.mustBeMade()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		free := l.callPasses(ctx, info.FullMethod)
		p := l.joined(ctx, free)
		if p == nil && !free {
			_ = grpc.SetTrailer(ctx, limitTrailer) // before there is a place, because it may panic; an error means that there is no client
			if p, err = l.enter(ctx, incomingAttempt(ctx) > 0); err != nil {
				_ = grpc.SetTrailer(ctx, trailerFor(err))
				return nil, statusOf(err)
			}
			ctx = l.with(ctx, p)
		}
		p.Work(func() { reply, err = handler(ctx, req) })
		return reply, err
	}
}

// StreamServer is [Limiter.UnaryServer] for streams of all kinds. A stream has its place
// until its handler returns, or calls [Limiter.Release].
func (l *Limiter) StreamServer() grpc.StreamServerInterceptor {
	l.mustBeMade()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := stream.Context()
		free := l.callPasses(ctx, info.FullMethod)
		p := l.joined(ctx, free)
		if p == nil && !free {
			stream.SetTrailer(limitTrailer)
			if p, err = l.enter(ctx, incomingAttempt(ctx) > 0); err != nil {
				stream.SetTrailer(trailerFor(err))
				return statusOf(err)
			}
			stream = &contextStream{stream, l.with(ctx, p)}
		}
		p.Work(func() { err = handler(srv, stream) })
		return err
	}
}

// callPasses reports whether a Limiter lets a call of a method pass.
func (l *Limiter) callPasses(ctx context.Context, method string) bool {
	if l.free == nil || limit.NeedsNoPlace(method) {
		return limit.NeedsNoPlace(method)
	}
	authority := strings.Join(metadata.ValueFromIncomingContext(ctx, ":authority"), "")
	return l.free.MatchCall(method, httpattempt.HostName("", authority))
}

// trailerFor returns what else the trailer of a call says that a Limiter answered with err.
func trailerFor(err error) metadata.MD {
	if err == errRefused {
		return refusedTrailer
	}
	return nil
}

// statusOf returns the status of a call that got no place.
func statusOf(err error) error {
	if err == errRefused {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.FromContextError(err).Err()
}

// turnedAway reports whether a Limiter turned a hedge away that ended with err.
func turnedAway(err error, trailer metadata.MD) bool {
	return status.Code(err) == codes.Unavailable && len(trailer.Get(refusedHeader)) > 0
}
