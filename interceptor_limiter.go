//go:build !hedge_nogrpc

package hedge

import (
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/grpccall"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/limit"
)

// What the trailer says of a Limiter. It is not in the header: with a header a call is
// committed, and gRPC does not retry it any more (gRFC A6).
var (
	limitTrailer   = metadata.Pairs(limit.LimitHeader, "1")
	refusedTrailer = metadata.Pairs(limit.RefusedHeader, "1")
)

// UnaryServer returns an interceptor that lets unary calls through. It belongs before
// interceptors that do work, and after those that measure latency.
func (l *Limiter) UnaryServer() grpc.UnaryServerInterceptor {
	l.mustBeInitialized()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		free := l.callPasses(ctx, info.FullMethod)
		p, err := l.joinRequest(ctx, free)
		if err != nil {
			return nil, statusOf(err)
		}
		if p == nil && !free {
			_ = grpc.SetTrailer(ctx, limitTrailer) // before there is a slot, because it may panic; an error means that there is no client
			p = l.slots.NewSlot()
			if err = l.acquireSlot(ctx, p, grpccall.IncomingAttempt(ctx) > 0); err != nil {
				_ = grpc.SetTrailer(ctx, trailerFor(err))
				return nil, statusOf(err)
			}
			ctx = l.withAdmission(ctx, &admission{slot: p})
		}
		p.RunHandler(func() { reply, err = handler(ctx, req) })
		return reply, err
	}
}

// StreamServer is [Limiter.UnaryServer] for streams of all kinds. A stream takes its slot when its handler has received the first message, or
// the end of them, and before it sends anything. So clients that send nothing hold no slot. It has the slot until its handler
// returns, or calls [Limiter.Release]. A handler that releases before the first message needs no slot. What the
// handler of a stream of several requests does before it receives or sends is not limited.
func (l *Limiter) StreamServer() grpc.StreamServerInterceptor {
	l.mustBeInitialized()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := stream.Context()
		free := l.callPasses(ctx, info.FullMethod)
		if l.willTakeSlot(ctx) { // with the first message of stream, which this Limiter has wrapped
			return handler(srv, stream)
		}
		if p, _ := l.joinRequest(ctx, free); p != nil || free {
			p.RunHandler(func() { err = handler(srv, stream) })
			return err
		}
		stream.SetTrailer(limitTrailer)
		hedge := grpccall.IncomingAttempt(ctx) > 0
		if hedge && l.isCrowded(l.slots.RequestCount()) {
			stream.SetTrailer(refusedTrailer)
			return statusOf(l.refuseHedge(ctx))
		}
		limited := &limitedStream{ServerStream: stream, limiter: l, hedge: hedge, slot: l.slots.NewSlot()}
		limited.ctx = l.withAdmission(ctx, &admission{limited.slot, limited.takeSlot})
		limited.slot.RunHandler(func() { err = handler(srv, limited) })
		if refused := limited.refused.Load(); refused != nil {
			return statusOf(*refused)
		}
		return err
	}
}

// A limitedStream is a stream that takes its slot with its first message.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context // has slot
	limiter *Limiter
	hedge   bool
	slot    *limit.Slot

	taking  sync.Once
	refused atomic.Pointer[error] // why the stream got no slot; nil: it has got its slot, or needs none yet
}

func (s *limitedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message, and then takes the slot. It does so at the end of the messages too, because the handler goes on.
func (s *limitedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil && err != io.EOF {
		return err
	}
	if refused := s.takeSlot(); refused != nil {
		return statusOf(refused)
	}
	return err
}

// SendMsg takes the slot, and then sends a message.
func (s *limitedStream) SendMsg(m any) error {
	if err := s.takeSlot(); err != nil {
		return statusOf(err)
	}
	return s.ServerStream.SendMsg(m)
}

// SendHeader takes the slot, and then sends the header: a stream that is refused after its header is not retried (gRFC A6).
func (s *limitedStream) SendHeader(md metadata.MD) error {
	if err := s.takeSlot(); err != nil {
		return statusOf(err)
	}
	return s.ServerStream.SendHeader(md)
}

// takeSlot takes the slot unless that was tried, or the slot was released. It returns why the stream got no slot, each time it is called.
func (s *limitedStream) takeSlot() error {
	s.taking.Do(func() {
		if s.slot.IsReleased() {
			return
		}
		if err := s.limiter.acquireSlot(s.ServerStream.Context(), s.slot, s.hedge); err != nil {
			s.ServerStream.SetTrailer(trailerFor(err))
			s.refused.Store(&err)
		}
	})
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// callPasses reports whether a Limiter lets a call of a method pass.
func (l *Limiter) callPasses(ctx context.Context, method string) bool {
	if l.unlimited == nil || l.isUnlimitedMethod(method) {
		return l.isUnlimitedMethod(method)
	}
	authority := strings.Join(metadata.ValueFromIncomingContext(ctx, ":authority"), "")
	return l.unlimited.MatchCall(method, httpattempt.HostName("", authority))
}

// trailerFor returns what else the trailer of a call says that a Limiter answered with err.
func trailerFor(err error) metadata.MD {
	if err == errRefused {
		return refusedTrailer
	}
	return nil
}

// statusOf returns the status of a call that got no slot.
func statusOf(err error) error {
	if err == errRefused {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.FromContextError(err).Err()
}
