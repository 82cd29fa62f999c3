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
	"github.com/gohedge/hedge/internal/race"
)

// NewUnaryServerInterceptor returns a server interceptor that prevents the hedging of calls which a handler makes for
// a hedge. It marks the context of each incoming call that is a hedge. Calls that are made with a marked context are
// not hedged. [Middleware] does the same for HTTP, and explains why.
//
// The interceptor recognises hedges by the metadata grpc-previous-rpc-attempts. gRPC's own retries carry the same
// metadata, and are treated like hedges.
func NewUnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if n := grpccall.IncomingAttempt(ctx); n > 0 {
			ctx = race.HedgeContext(ctx, n)
		}
		return handler(ctx, req)
	}
}

// NewStreamServerInterceptor is [NewUnaryServerInterceptor] for streaming calls of all kinds.
func NewStreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if n := grpccall.IncomingAttempt(stream.Context()); n > 0 {
			stream = &contextStream{stream, race.HedgeContext(stream.Context(), n)}
		}
		return handler(srv, stream)
	}
}

// A contextStream is a server stream whose Context is replaced by ctx.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }

// limitTrailer is the trailer of responses from a server with a Limiter, and refusedTrailer the additional trailer of a
// refused hedge. They are not headers, because gRPC does not retry a call that has received a header (gRFC A6).
var (
	limitTrailer   = metadata.Pairs(limit.LimitHeader, "1")
	refusedTrailer = metadata.Pairs(limit.RefusedHeader, "1")
)

// UnaryServer returns a server interceptor that applies the limit to unary gRPC calls. Install it before interceptors
// that do work, and after interceptors that measure latency.
func (l *Limiter) UnaryServer() grpc.UnaryServerInterceptor {
	l.mustBeInitialized()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
		exempt := l.isUnlimitedCall(ctx, info.FullMethod)
		p, err := l.joinRequest(ctx, exempt)
		if err != nil {
			return nil, rejectionStatus(err)
		}
		if p == nil && !exempt {
			_ = grpc.SetTrailer(ctx, limitTrailer) // before there is a slot, because it may panic; an error means that there is no client
			p = l.slots.NewSlot()
			if err = l.acquireSlot(ctx, p, grpccall.IncomingAttempt(ctx) > 0); err != nil {
				_ = grpc.SetTrailer(ctx, rejectionTrailer(err))
				return nil, rejectionStatus(err)
			}
			ctx = l.withAdmission(ctx, &admission{slot: p})
		}
		p.RunHandler(func() { reply, err = handler(ctx, req) })
		return reply, err
	}
}

// StreamServer returns a server interceptor that applies the limit to streaming gRPC calls of all kinds.
//
// A stream takes its slot when its handler has received the first message or the end of the messages. If the handler
// sends a header or message earlier, the stream takes its slot before that. So clients that send nothing hold no slot.
// Work of the handler before the stream has its slot is not limited.
//
// The function grpc.SendHeader bypasses the stream, and sends the header without waiting for a slot. Use the method
// SendHeader of the stream.
//
// The stream holds the slot until its handler returns or calls [Limiter.Release]. If a handler calls Release before the
// first message, its stream needs no slot.
func (l *Limiter) StreamServer() grpc.StreamServerInterceptor {
	l.mustBeInitialized()
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		ctx := stream.Context()
		exempt := l.isUnlimitedCall(ctx, info.FullMethod)
		if l.willTakeSlot(ctx) { // with the first message of stream, which this Limiter has wrapped
			return handler(srv, stream)
		}
		if p, _ := l.joinRequest(ctx, exempt); p != nil || exempt {
			p.RunHandler(func() { err = handler(srv, stream) })
			return err
		}
		stream.SetTrailer(limitTrailer)
		hedge := grpccall.IncomingAttempt(ctx) > 0
		if hedge && l.shouldRefuseHedges(l.slots.RequestCount()) {
			stream.SetTrailer(refusedTrailer)
			return rejectionStatus(l.refuseHedge(ctx))
		}
		limited := &limitedStream{ServerStream: stream, limiter: l, hedge: hedge, slot: l.slots.NewSlot()}
		limited.ctx = l.withAdmission(ctx, &admission{limited.slot, limited.takeSlot})
		limited.slot.RunHandler(func() { err = handler(srv, limited) })
		if refused := limited.refused.Load(); refused != nil {
			return rejectionStatus(*refused)
		}
		return err
	}
}

// A limitedStream is a server stream that waits for a slot of the Limiter before its handler gets the first message.
type limitedStream struct {
	grpc.ServerStream
	ctx     context.Context // contains the admission of the stream
	limiter *Limiter
	hedge   bool // whether the stream is a hedge
	slot    *limit.Slot

	taking  sync.Once             // makes takeSlot wait only once
	refused atomic.Pointer[error] // error if the stream got no slot; nil: it has a slot, or has not asked for it
}

func (s *limitedStream) Context() context.Context { return s.ctx }

// RecvMsg receives a message or io.EOF, and then waits for the slot, because the handler starts to work in either case.
// It returns the status of a rejected call if the stream gets no slot.
func (s *limitedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil && err != io.EOF {
		return err
	}
	if refused := s.takeSlot(); refused != nil {
		return rejectionStatus(refused)
	}
	return err
}

// SendMsg waits for the slot, and then sends a message. It returns the status of a rejected call if the stream gets no
// slot.
func (s *limitedStream) SendMsg(m any) error {
	if err := s.takeSlot(); err != nil {
		return rejectionStatus(err)
	}
	return s.ServerStream.SendMsg(m)
}

// SendHeader waits for the slot, and then sends the header. The order matters: gRPC does not retry a stream that was
// rejected after its header (gRFC A6).
func (s *limitedStream) SendHeader(md metadata.MD) error {
	if err := s.takeSlot(); err != nil {
		return rejectionStatus(err)
	}
	return s.ServerStream.SendHeader(md)
}

// takeSlot waits for the slot of the stream. Only the first call waits; later calls return its result. The result is
// nil if the stream has a slot, or if the handler has called Release before. Otherwise it is the error because of which
// the stream got no slot.
func (s *limitedStream) takeSlot() error {
	s.taking.Do(func() {
		if s.slot.IsReleased() {
			return
		}
		if err := s.limiter.acquireSlot(s.ServerStream.Context(), s.slot, s.hedge); err != nil {
			s.ServerStream.SetTrailer(rejectionTrailer(err))
			s.refused.Store(&err)
		}
	})
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	return nil
}

// isUnlimitedCall reports whether a gRPC call needs no slot, judged by its full method name and the authority in ctx.
func (l *Limiter) isUnlimitedCall(ctx context.Context, method string) bool {
	if l.unlimited == nil || l.isUnlimitedMethod(method) {
		return l.isUnlimitedMethod(method)
	}
	authority := strings.Join(metadata.ValueFromIncomingContext(ctx, ":authority"), "")
	return l.unlimited.MatchCall(method, httpattempt.HostName("", authority))
}

// rejectionTrailer returns the additional trailer of a call that got no slot because of err: refusedTrailer for a
// refused hedge, otherwise nil.
func rejectionTrailer(err error) metadata.MD {
	if err == errRefused {
		return refusedTrailer
	}
	return nil
}

// rejectionStatus returns the gRPC status of a call that got no slot because of err: UNAVAILABLE for a refused hedge,
// otherwise the status for a cancelled or expired context.
func rejectionStatus(err error) error {
	if err == errRefused {
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.FromContextError(err).Err()
}
