package forward

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A certificate is a TLS certificate in files. It is read again within a minute after its file has changed, because
// certificates are renewed every few weeks.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex       // guards the fields below
	checked time.Time        // when the file was last checked for a change
	changed time.Time        // modification time of certFile when it was read
	cert    *tls.Certificate // not nil after the first read
}

// CertificateFiles reads a certificate chain and its private key from PEM files. It returns a function for the field
// GetCertificate of a tls.Config, or an error if the files cannot be read.
//
// The function reads the files again within a minute after certFile has changed. If that fails, it logs to slog.Default
// and returns the old certificate. It never returns an error, and is safe for concurrent use.
func CertificateFiles(certFile, keyFile string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.readIfChanged(); err != nil {
		return nil, fmt.Errorf("forward: certificate: %w", err)
	}
	return c.getCertificate, nil
}

// getCertificate returns the certificate for a TLS handshake. It implements the field GetCertificate of tls.Config.
func (c *certificate) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= time.Minute {
		if err := c.readIfChanged(); err != nil {
			slog.Warn("forward: keeping the old certificate", "error", err)
		}
	}
	return c.cert, nil
}

// readIfChanged reads the certificate files if the modification time of the certificate file has changed. After an
// error, the certificate that was read before remains in use. The caller must hold mu.
func (c *certificate) readIfChanged() error {
	c.checked = time.Now()
	info, err := os.Stat(c.certFile)
	if err != nil || info.ModTime().Equal(c.changed) {
		return err
	}
	cert, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err == nil {
		c.changed, c.cert = info.ModTime(), &cert
	}
	return err
}
