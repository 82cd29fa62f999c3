package usercode

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"slices"
	"time"
)

var errNoCertificate = errors.New("dnshedge: TLSConfig.GetClientCertificate returned neither a certificate nor an error")

// GuardTLS replaces the functions, interfaces and keys in the configuration of a TLS client by wrappers that recover
// panics. After a panic, or without a result, a wrapper returns an error, or a default result where no error can be
// returned. Functions that verify or sign may also call runtime.Goexit. t must be a copy that is not in use yet.
func GuardTLS(t *tls.Config) {
	const field = "TLSConfig"
	if f := t.GetClientCertificate; f != nil {
		t.GetClientCertificate = func(i *tls.CertificateRequestInfo) (c *tls.Certificate, err error) {
			err = CallInGoroutine(field, func() (err error) {
				c, err = f(i)
				return err
			})
			switch {
			case err != nil:
				return nil, err
			case c == nil: // package tls would dereference it
				return nil, errNoCertificate
			}
			own := *c
			own.PrivateKey = guardKey(c.PrivateKey)
			return &own, nil
		}
	}
	t.Certificates = slices.Clone(t.Certificates)
	for i := range t.Certificates {
		t.Certificates[i].PrivateKey = guardKey(t.Certificates[i].PrivateKey)
	}
	if f := t.VerifyPeerCertificate; f != nil {
		t.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
			return CallInGoroutine(field, func() error { return f(raw, chains) })
		}
	}
	for _, verify := range []*func(tls.ConnectionState) error{&t.VerifyConnection, &t.EncryptedClientHelloRejectionVerify} {
		if f := *verify; f != nil {
			*verify = func(s tls.ConnectionState) error {
				return CallInGoroutine(field, func() error { return f(s) })
			}
		}
	}
	if f := t.Time; f != nil {
		t.Time = func() time.Time {
			now := time.Now()
			RunGuarded(func() { now = f() })
			return now
		}
	}
	if t.Rand != nil {
		t.Rand = guardedReader{t.Rand}
	}
	if t.KeyLogWriter != nil {
		t.KeyLogWriter = guardedWriter{t.KeyLogWriter}
	}
	if t.ClientSessionCache != nil {
		t.ClientSessionCache = guardedSessions{t.ClientSessionCache}
	}
}

// A guardedReader is an io.Reader that converts panics of the wrapped Reader to errors.
type guardedReader struct{ r io.Reader }

func (r guardedReader) Read(b []byte) (n int, err error) {
	defer RecoverPanic("TLSConfig.Rand", &err)
	return r.r.Read(b)
}

// A guardedWriter is an io.Writer that converts panics of the wrapped Writer to errors.
type guardedWriter struct{ w io.Writer }

func (w guardedWriter) Write(b []byte) (n int, err error) {
	defer RecoverPanic("TLSConfig.KeyLogWriter", &err)
	return w.w.Write(b)
}

// guardedSessions is a TLS session cache that recovers panics of the wrapped cache. After a panic no session is found
// or stored.
type guardedSessions struct{ cache tls.ClientSessionCache }

func (s guardedSessions) Get(key string) (c *tls.ClientSessionState, ok bool) {
	RunGuarded(func() { c, ok = s.cache.Get(key) })
	return c, ok
}

func (s guardedSessions) Put(key string, c *tls.ClientSessionState) {
	RunGuarded(func() { s.cache.Put(key, c) })
}

// guardKey wraps a private key of a user's type, so that a panic in its Sign methods becomes an error. It returns keys
// of the standard library, and keys that cannot sign, unchanged.
func guardKey(key crypto.PrivateKey) crypto.PrivateKey {
	switch key := key.(type) {
	case *rsa.PrivateKey, *ecdsa.PrivateKey, ed25519.PrivateKey:
	case crypto.MessageSigner:
		return guardedMessageSigner{guardedSigner{key}, key}
	case crypto.Signer:
		return guardedSigner{key}
	}
	return key
}

const keyField = "TLSConfig's private key"

type guardedSigner struct{ key crypto.Signer }

func (s guardedSigner) Public() (key crypto.PublicKey) {
	RunGuarded(func() { key = s.key.Public() })
	return key
}

func (s guardedSigner) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) (b []byte, err error) {
	err = CallInGoroutine(keyField, func() (err error) {
		b, err = s.key.Sign(rand, digest, opts)
		return err
	})
	return b, err
}

type guardedMessageSigner struct {
	guardedSigner
	key crypto.MessageSigner
}

func (s guardedMessageSigner) SignMessage(rand io.Reader, message []byte, opts crypto.SignerOpts) (b []byte, err error) {
	err = CallInGoroutine(keyField, func() (err error) {
		b, err = s.key.SignMessage(rand, message, opts)
		return err
	})
	return b, err
}
