package worlds_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"sync"
	"time"
)

// identity returns the certificate of the servers and the roots of the clients. Fake time starts in the year 2000.
var identity = sync.OnceValues(func() (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"*.test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
})

// serverTLS and clientTLS disable parts of TLS that cost time.
func serverTLS() *tls.Config {
	own, _ := identity()
	return &tls.Config{Certificates: []tls.Certificate{own}, SessionTicketsDisabled: true, CurvePreferences: []tls.CurveID{tls.X25519}}
}

func clientTLS() *tls.Config {
	_, roots := identity()
	return &tls.Config{RootCAs: roots, CurvePreferences: []tls.CurveID{tls.X25519}}
}
