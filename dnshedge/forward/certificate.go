package main

import (
	"crypto/tls"
	"log"
	"os"
	"sync"
	"time"
)

// certificate is the certificate of the TLS listeners. It is read again within a minute after its file has changed,
// because certificates are renewed every few weeks.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex       // guards the fields below
	checked time.Time        // when the file was last checked for a change
	changed time.Time        // modification time of certFile when it was read
	cert    *tls.Certificate // nil: not read yet
}

// getCertificate returns the certificate for a TLS handshake, and reads it again if its file has changed. If reading
// fails, it logs the error and returns the old certificate. It returns an error if no certificate was ever read.
func (c *certificate) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert != nil && time.Since(c.checked) < time.Minute {
		return c.cert, nil
	}
	c.checked = time.Now()
	info, err := os.Stat(c.certFile)
	if err == nil && c.cert != nil && info.ModTime().Equal(c.changed) {
		return c.cert, nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.LoadX509KeyPair(c.certFile, c.keyFile)
	}
	if err != nil {
		if c.cert != nil {
			log.Printf("dnsforward: keeping the old certificate: %v", err)
			return c.cert, nil
		}
		return nil, err
	}
	c.changed, c.cert = info.ModTime(), &cert
	return c.cert, nil
}
