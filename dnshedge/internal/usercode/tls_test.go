package usercode_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
)

// Package tls dereferences the certificate that GetClientCertificate returns, on a goroutine of its own over HTTPS.
func TestGuardTLSReportsMissingClientCertificate(t *testing.T) {
	errOwn := errors.New("no key today")
	for name, row := range map[string]struct {
		get  func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
		want string
	}{
		"nothing":     {func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, nil }, "neither a certificate nor an error"},
		"error":       {func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, errOwn }, errOwn.Error()},
		"panic":       {func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { panic("no key today") }, "TLSConfig panicked: no key today"},
		"certificate": {func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return new(tls.Certificate), nil }, ""},
	} {
		conf := &tls.Config{GetClientCertificate: row.get}
		usercode.GuardTLS(conf)
		c, err := conf.GetClientCertificate(new(tls.CertificateRequestInfo))
		if row.want == "" {
			require.NoError(t, err)
			assert.NotNil(t, c, name)
			continue
		}
		require.ErrorContains(t, err, row.want, name)
		assert.Nil(t, c, name)
	}
}

// A lyingConn says that it has read more than fits into the buffer.
type lyingConn struct{ net.Conn }

func (lyingConn) Read(b []byte) (int, error) { return len(b) + 1, nil }

func TestConnReportsImpossibleReads(t *testing.T) {
	r := bufio.NewReader(usercode.WrapConn(lyingConn{}))
	_, err := r.ReadByte()
	require.ErrorContains(t, err, "returned 4097, for a buffer of 4096 bytes")
}
