// Package quic adds DNS over QUIC (RFC 9250) and DNS over HTTP/3 (RFC 8484 over RFC 9114) to package dnshedge.
//
// A program that imports it can use upstreams with the schemes quic and h3:
//
//	import _ "github.com/gohedge/hedge/dnshedge/quic"
//
//	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{
//		{Net: "quic", Addr: "192.0.2.1:853", ServerName: "dns.example"},
//		{Net: "h3", Addr: "dns.example:443"},
//	}}
//
// [Listen] and [ListenHTTP3] open listeners for a [forward.Forwarder], which answer clients.
//
// # Connections
//
// Queries share a connection, and each has a stream of its own, so that a lost packet delays no other query. QUIC sends
// lost packets again, and keeps a connection when a NAT changes the client's port. The Client sends a query again only as
// a hedge, over a second connection. A connection on which nothing arrives while queries wait is closed after a second,
// or after eight round trips if that is longer. Its queries are sent again over a new connection.
//
// Idle connections are closed after 30 s, or earlier if the server asks for that.
//
// # Early data
//
// There is no 0-RTT, neither for upstreams nor for clients. An attacker can replay early data, and sees from the traffic of
// the server which name it asks for (RFC 9250 §7.1). Clients that keep their connections gain next to nothing by it.
//
// # Debugging
//
// Set KeyLogWriter in the tls.Config of the Client or of the listener to decrypt captured packets.
package quic
