package quic

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

	"github.com/miekg/dns"
)

const (
	headerLen  = 12      // bytes of the header of a DNS message
	maxMessage = 1 << 16 // bytes of a DNS message are fewer than this

	// firstRead is the number of bytes of a message for which memory is allocated at first. More is allocated only when the
	// peer has sent them.
	firstRead = 512
)

// appendFrame appends the message m after its length, the form of a message on a stream (RFC 9250 §4.2), to b.
func appendFrame(b, m []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(m))), m...)
}

// readMessage reads a message, which follows its length, from a stream. The error is errIncomplete if the stream ends
// before, and errShortMessage if the message is shorter than a header. reserve is called before memory for n more bytes is
// allocated. If it returns an error, readMessage returns that error.
func readMessage(r io.Reader, reserve func(n int) error) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, incompleteError(err)
	}
	size := int(binary.BigEndian.Uint16(head[:]))
	if size < headerLen {
		return nil, errShortMessage
	}
	var b []byte
	for len(b) < size {
		n := min(size-len(b), max(firstRead, len(b)))
		if err := reserve(n); err != nil {
			return nil, err
		}
		start := len(b)
		b = slices.Grow(b, n)[:start+n]
		if _, err := io.ReadFull(r, b[start:]); err != nil {
			return nil, incompleteError(err)
		}
	}
	return b, nil
}

// incompleteError returns errIncomplete if err is the end of a stream, and otherwise err.
func incompleteError(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errIncomplete
	}
	return err
}

// expectEOF reads on after the message of a stream, where the stream must end. The error is nil at the end (io.EOF),
// and errExtraData if there is more data.
func expectEOF(r io.Reader) error {
	var b [1]byte
	switch n, err := io.ReadFull(r, b[:]); {
	case n > 0:
		return errExtraData
	case err == io.EOF:
		return nil
	default:
		return err
	}
}

// checkMessage returns an error if the message m, which has a header, must not be sent over DNS over QUIC: its ID is not 0
// (RFC 9250 §4.2.1), or it has the option edns-tcp-keepalive (§5.5.2).
func checkMessage(m []byte) error {
	switch {
	case m[0]|m[1] != 0:
		return errMessageID
	case hasKeepalive(m):
		return errKeepalive
	}
	return nil
}

// isResponse reports whether the message m has the flag QR.
func isResponse(m []byte) bool { return m[2]&0x80 != 0 }

// hasKeepalive reports whether the message m has the option edns-tcp-keepalive. It does not find the option after a
// malformed record. Compressed names are not written out, because that may take long.
func hasKeepalive(m []byte) bool {
	if !bytes.Contains(m[headerLen:], []byte{0, dns.EDNS0TCPKEEPALIVE, 0}) { // the code and half of the length of the option
		return false
	}
	count := func(off int) int { return int(binary.BigEndian.Uint16(m[off:])) }
	off := headerLen
	for range count(4) { // questions
		off = skipName(m, off) + 4
	}
	for range count(6) + count(8) + count(10) {
		off = skipName(m, off)
		if off+10 > len(m) {
			return false
		}
		isOPT, data := count(off) == int(dns.TypeOPT), off+10
		if off = data + count(off+8); off > len(m) {
			return false
		}
		if isOPT && hasOption(m[data:off], dns.EDNS0TCPKEEPALIVE) {
			return true
		}
	}
	return false
}

// skipName returns the offset after the name at the offset off of the message m, or at least the length of m if the name is
// malformed. It follows no compression pointers.
func skipName(m []byte, off int) int {
	for off < len(m) {
		switch n := int(m[off]); {
		case n == 0:
			return off + 1
		case n >= 0xc0:
			return off + 2
		default:
			off += 1 + n
		}
	}
	return off
}

// hasOption reports whether options, the data of an OPT record, has an option with a code.
func hasOption(options []byte, code uint16) bool {
	for len(options) >= 4 {
		if binary.BigEndian.Uint16(options) == code {
			return true
		}
		options = options[min(4+int(binary.BigEndian.Uint16(options[2:])), len(options)):]
	}
	return false
}
