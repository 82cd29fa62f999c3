package quic

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"
)

// Timeouts, which are shorter in tests.
var (
	queryTimeout = 5 * time.Second // time in which a query and the end of its stream must arrive
	writeTimeout = 5 * time.Second // time in which the client must accept a response
)

// maxIncomplete is the number of bytes that the incomplete queries of a connection may have. These are two queries of
// maximum size, or 128 queries of 1 KiB.
const maxIncomplete = 1 << 17

// serveQueries answers the queries of a DNS over QUIC connection, until it ends.
//
// At most maxStreams queries are answered at a time. That includes queries that the client has cancelled, because they
// are answered nevertheless, for the cache. So a client that opens and cancels streams is not served faster.
func (c *serverConn) serveQueries() {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxStreams)
	for {
		slots <- struct{}{}
		stream, err := c.AcceptStream(context.Background())
		if err != nil {
			return
		}
		if !c.beginQuery() {
			stream.CancelWrite(quicgo.StreamErrorCode(codeInternalError))
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			defer c.endQuery()
			c.answerStream(stream)
		})
	}
}

// answerStream reads the query of a stream and writes the response. A violation of the protocol or excessive use ends the
// connection. A stream without a response is reset in one direction only, because STOP_SENDING is for clients (RFC 9250
// §4.3.3).
func (c *serverConn) answerStream(stream *quicgo.Stream) {
	query, err := c.readQuery(stream)
	switch {
	case err == nil:
	case isViolation(err):
		c.abort(codeProtocolError, err)
		return
	case err == errExcessiveLoad:
		c.abort(codeExcessiveLoad, err)
		return
	default: // the client has cancelled the query, or the connection has ended
		stream.CancelWrite(quicgo.StreamErrorCode(codeRequestCancelled))
		return
	}
	if !c.listener.handler.IsAllowed(c.RemoteAddr()) { // the address may have changed (RFC 9000 §9)
		c.abort(codeUnspecifiedError, errRefused)
		return
	}
	response := c.client.Answer(query)
	c.recordAnswer()
	if response == nil {
		if c.listener.isClosing() {
			stream.CancelWrite(quicgo.StreamErrorCode(codeInternalError))
		} else {
			c.abort(codeExcessiveLoad, errExcessiveLoad)
		}
		return
	}
	_ = stream.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := writeMessage(stream, response); err != nil {
		stream.CancelWrite(quicgo.StreamErrorCode(codeInternalError))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.abort(codeExcessiveLoad, errExcessiveLoad)
		}
	}
}

// readQuery reads the query of a stream, and the end of the stream. The error is errNoStreamEnd if they do not arrive
// in time, and errExcessiveLoad if the incomplete queries of the connection have too many bytes.
func (c *serverConn) readQuery(stream *quicgo.Stream) ([]byte, error) {
	_ = stream.SetReadDeadline(time.Now().Add(queryTimeout))
	reserved := 0
	defer func() { c.incomplete.Add(-int64(reserved)) }()
	query, err := readMessage(stream, func(n int) error {
		reserved += n
		if c.incomplete.Add(int64(n)) > maxIncomplete {
			return errExcessiveLoad
		}
		return nil
	})
	if err == nil {
		err = expectEOF(stream)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errNoStreamEnd
	case err != nil:
		return nil, err
	case isResponse(query):
		return nil, errNotQuery
	}
	return query, checkMessage(query)
}

// abort ends the connection because of err, and sends code to the client.
func (c *serverConn) abort(code errorCode, err error) {
	_ = c.CloseWithError(c.listener.closeCode(code), err.Error())
}
