package quic

import (
	"errors"
	"fmt"

	quicgo "github.com/quic-go/quic-go"
)

// An errorCode is an error code of DNS over QUIC (RFC 9250 §4.3, §8.4).
type errorCode uint64

const (
	codeNoError          errorCode = 0 // the connection is no longer needed
	codeInternalError    errorCode = 1 // the query cannot be answered
	codeProtocolError    errorCode = 2 // the peer has violated the protocol
	codeRequestCancelled errorCode = 3 // the client no longer waits for the response
	codeExcessiveLoad    errorCode = 4 // the client uses too much
	codeUnspecifiedError errorCode = 5 // also stands for all codes that are unknown
)

func (c errorCode) String() string {
	names := [...]string{"DOQ_NO_ERROR", "DOQ_INTERNAL_ERROR", "DOQ_PROTOCOL_ERROR", "DOQ_REQUEST_CANCELLED", "DOQ_EXCESSIVE_LOAD", "DOQ_UNSPECIFIED_ERROR"}
	if c >= errorCode(len(names)) {
		c = codeUnspecifiedError // RFC 9250 §4.3.4
	}
	return names[c]
}

// Violations of RFC 9250 by a peer. They end the connection with DOQ_PROTOCOL_ERROR (§4.3.3).
var (
	errMessageID    = errors.New("dnshedge/quic: message ID is not 0")
	errKeepalive    = errors.New("dnshedge/quic: message with the option edns-tcp-keepalive")
	errShortMessage = errors.New("dnshedge/quic: message shorter than a header")
	errIncomplete   = errors.New("dnshedge/quic: stream ends before its message")
	errExtraData    = errors.New("dnshedge/quic: data after the message of a stream")
	errNoStreamEnd  = errors.New("dnshedge/quic: stream is not ended in time")
	errNotQuery     = errors.New("dnshedge/quic: message is not a query")
	errStopSending  = errors.New("dnshedge/quic: server has stopped a query")
)

var (
	errSilent        = errors.New("dnshedge/quic: nothing arrives over the connection")
	errExcessiveLoad = errors.New("dnshedge/quic: client uses too much")
)

// explainError replaces err, an error of package quic-go, by one that names the code of DNS over QUIC if the peer has ended
// the connection or a stream with such a code.
func explainError(err error) error {
	var stream *quicgo.StreamError
	var conn *quicgo.ApplicationError
	switch {
	case errors.As(err, &stream) && stream.Remote:
		return fmt.Errorf("dnshedge/quic: stream ended by the peer: %v: %w", errorCode(stream.ErrorCode), err)
	case errors.As(err, &conn) && conn.Remote:
		return fmt.Errorf("dnshedge/quic: connection ended by the peer: %v: %w", errorCode(conn.ErrorCode), err)
	}
	return err
}
