package quic

import (
	"context"
	"errors"
	"os"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/gohedge/hedge/dnshedge"
)

func init() {
	dnshedge.RegisterProtocol(dnshedge.Protocol{Scheme: "quic", RFC: 9250, Port: "853", Dial: dialDoQ})
}

// endTimeout is how long the end of a stream may follow the response. The response itself is not delayed. It is shorter in
// tests.
var endTimeout = 5 * time.Second

// A doqConn is a connection for DNS over QUIC to an upstream.
type doqConn struct{ *upstreamConn }

var _ dnshedge.ProtocolConn = doqConn{}

// dialDoQ opens a connection for DNS over QUIC to the upstream to. It is the Dial function of the Protocol with the
// scheme quic.
func dialDoQ(ctx context.Context, to dnshedge.DialTarget) (dnshedge.ProtocolConn, error) {
	if err := checkPort(to.Addr); err != nil {
		return nil, err
	}
	c, err := dialConn(ctx, to, alpnDoQ, &quicgo.Config{MaxIncomingUniStreams: -1})
	if err != nil {
		return nil, explainError(err)
	}
	conn := doqConn{c}
	c.abortCode, c.sendQuery = quicgo.ApplicationErrorCode(codeNoError), conn.sendRootQuery
	return conn, nil
}

// Exchange sends a query over a stream of its own, and returns the response. It implements dnshedge.ProtocolConn. If ctx
// ends, the server is asked to send no response (RFC 9250 §4.3.1). If the server violates the protocol, the connection is
// closed.
func (c doqConn) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	if err := checkMessage(query); err != nil {
		return nil, err
	}
	stream, err := c.openStream(ctx)
	if err != nil {
		return nil, err
	}
	return c.exchangeOver(ctx, stream, query)
}

// openStream opens a stream. It returns dnshedge.ErrNoStream if the server permits none in time.
func (c doqConn) openStream(ctx context.Context) (*quicgo.Stream, error) {
	streamCtx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := c.OpenStreamSync(streamCtx)
	switch {
	case err == nil:
		return stream, nil
	case ctx.Err() == nil && streamCtx.Err() != nil:
		return nil, dnshedge.ErrNoStream
	}
	return nil, c.explainQueryError(err)
}

// sendRootQuery sends a probe, a query for the servers of the root, and waits for the response until ctx ends. It does
// nothing if the server permits no further stream.
func (c doqConn) sendRootQuery(ctx context.Context) {
	stream, err := c.OpenStream()
	if err != nil {
		return
	}
	c.probeSent.Store(true)
	_, _ = c.exchangeOver(ctx, stream, rootQuery)
}

// exchangeOver sends a query over the new stream, which carries no other query, and returns the response.
func (c doqConn) exchangeOver(ctx context.Context, stream *quicgo.Stream, query []byte) ([]byte, error) {
	watch := c.watchSilence()
	defer watch.stop()
	watch.querySent.Store(true)
	cancel := context.AfterFunc(ctx, func() {
		stream.CancelRead(quicgo.StreamErrorCode(codeRequestCancelled))
		stream.CancelWrite(quicgo.StreamErrorCode(codeRequestCancelled))
	})
	defer cancel()
	if err := writeMessage(stream, query); err != nil {
		if stopped := (*quicgo.StreamError)(nil); errors.As(err, &stopped) && stopped.Remote {
			err = c.abortForViolation(errStopSending)
		}
		stream.CancelRead(quicgo.StreamErrorCode(codeRequestCancelled))
		return nil, c.explainQueryError(err)
	}
	response, err := readMessage(stream, func(int) error { return nil })
	if err == nil {
		err = checkMessage(response)
	}
	switch {
	case err == nil:
		go c.finishStream(stream)
		return response, nil
	case isViolation(err):
		return nil, c.abortForViolation(err)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, c.explainQueryError(err)
}

// writeMessage writes the message m to the stream, and ends the sending side of the stream.
func writeMessage(stream *quicgo.Stream, m []byte) error {
	if _, err := stream.Write(appendFrame(make([]byte, 0, len(m)+2), m)); err != nil {
		return err
	}
	return stream.Close()
}

// isViolation reports whether err means that the peer has violated RFC 9250.
func isViolation(err error) bool {
	switch err {
	case errMessageID, errKeepalive, errShortMessage, errIncomplete, errExtraData, errNoStreamEnd, errNotQuery, errStopSending:
		return true
	}
	return false
}

// abortForViolation closes the connection because the server has violated RFC 9250, and returns err, the violation.
func (c doqConn) abortForViolation(err error) error {
	c.abort(quicgo.ApplicationErrorCode(codeProtocolError), err)
	return err
}

// finishStream reads the end of a stream after its response, so that package quic-go frees the stream. The connection is
// closed if the server does not send the end in time, or sends more data.
func (c doqConn) finishStream(stream *quicgo.Stream) {
	_ = stream.SetReadDeadline(time.Now().Add(endTimeout))
	switch err := expectEOF(stream); {
	case err == errExtraData:
		_ = c.abortForViolation(err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = c.abortForViolation(errNoStreamEnd)
	}
}
