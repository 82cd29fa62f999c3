package dnsserver

import (
	"encoding/binary"
	"net"
)

// BareGo is the name of a forwarder that does nothing but accept a connection, read, write and close: the least that a
// server written in Go needs for a query over a new TCP connection. It answers each query with one address.
const BareGo = "bare-go"

// serveBareGo runs the server of BareGo at ListenAddress until an error occurs.
func serveBareGo(forwarderSettings) error {
	listener, err := net.Listen("tcp", ListenAddress)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go answerOneQuery(conn)
	}
}

// answerOneQuery reads one query, writes its response, and closes conn. The query must have no OPT record, and one call of Read
// must return all of it.
func answerOneQuery(conn net.Conn) {
	defer conn.Close()
	b := make([]byte, 512)
	n, err := conn.Read(b)
	const prefix, header = 2, 12
	if err != nil || n < prefix+header {
		return
	}
	b[prefix+2] |= 0x80 // QR
	b[prefix+7] = 1     // ANCOUNT
	b = append(b[:n], 0xc0, header, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4, 192, 0, 2, 1)
	binary.BigEndian.PutUint16(b, uint16(len(b)-prefix))
	_, _ = conn.Write(b)
}
