package dnsserver

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
)

// BareGo is the name of a forwarder that does nothing but read queries and write responses: the least that a server
// written in Go needs. It answers each query with one address.
const BareGo = "bare-go"

// serveBareGo runs BareGo, a server with one answer to all queries, over UDP and either TCP or TLS, until an error occurs.
func serveBareGo(s forwarderSettings) error {
	socket, err := net.ListenPacket("udp", ListenAddress)
	if err != nil {
		return err
	}
	go answerQueries(&datagramConn{PacketConn: socket}, 0, false)
	listener, err := net.Listen("tcp", ListenAddress)
	if err != nil {
		return err
	}
	config, err := s.tlsConfig()
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if config != nil {
				secure := tls.Server(conn, config)
				_ = secure.Handshake() // in a goroutine of its own, because it needs a large stack
				conn = secure
			}
			go answerQueries(conn, 2, s.ClosesConns)
		}()
	}
}

// A datagramConn makes a UDP socket an io.ReadWriter for a server: Write sends to the client of the last datagram read.
type datagramConn struct {
	net.PacketConn
	client net.Addr
}

func (c *datagramConn) Read(b []byte) (n int, err error) {
	n, c.client, err = c.ReadFrom(b)
	return n, err
}
func (c *datagramConn) Write(b []byte) (n int, err error) { return c.WriteTo(b, c.client) }

// answerQueries answers each query of conn by the same address until an error occurs, or only the first if once is set. It
// closes conn. prefix is the size of the length before a message: 2 bytes over TCP, 0 over UDP. Each call of Read must
// return a whole query, which must have no OPT record.
func answerQueries(conn io.ReadWriteCloser, prefix int, once bool) {
	defer conn.Close()
	const header = 12
	for b := make([]byte, 512); ; {
		n, err := conn.Read(b)
		if err != nil || n < prefix+header {
			return
		}
		b[prefix+2] |= 0x80 // QR
		b[prefix+7] = 1     // ANCOUNT
		m := append(b[:n], 0xc0, header, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4, 192, 0, 2, 1)
		if prefix > 0 {
			binary.BigEndian.PutUint16(m, uint16(len(m)-prefix))
		}
		if _, err := conn.Write(m); err != nil || once {
			return
		}
	}
}
