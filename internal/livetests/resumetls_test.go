package livetests_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/gohedge/hedge"
)

func TestResumeTLSSessionsResumesSecondConnection(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1+TLS", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			s := serve(t, protocol, func(http.ResponseWriter, *http.Request) {})
			plain := base(t, s)
			plain.DisableKeepAlives = true // each request has a new connection
			resuming := hedge.ResumeTLSSessions(plain)
			again := hedge.ResumeTLSSessions(resuming) // shares the sessions
			resumed := func(tr *http.Transport) bool {
				resp, err := hedge.Wrap(&http.Client{Transport: tr}).Get(s.URL)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				return resp.TLS.DidResume
			}
			assert.Equal(t, []bool{false, true, true}, []bool{resumed(resuming), resumed(resuming), resumed(again)})
			assert.Equal(t, []bool{false, false}, []bool{resumed(plain), resumed(plain)}, "the caller's Transport is unchanged")
			assert.Nil(t, plain.TLSClientConfig.ClientSessionCache)
		})
	}
}

// A resumed handshake does not call VerifyPeerCertificate.
func TestResumeTLSSessionsKeepsVerification(t *testing.T) {
	s := serve(t, "HTTP/1.1+TLS", func(http.ResponseWriter, *http.Request) {})
	errRevoked := errors.New("the certificate is revoked")
	revoked := false
	plain := base(t, s)
	plain.DisableKeepAlives = true
	plain.TLSClientConfig = plain.TLSClientConfig.Clone()
	plain.TLSClientConfig.VerifyPeerCertificate = func([][]byte, [][]*x509.Certificate) error {
		if revoked {
			return errRevoked
		}
		return nil
	}
	client := hedge.Wrap(&http.Client{Transport: hedge.ResumeTLSSessions(plain)})
	resp, err := client.Get(s.URL)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	revoked = true
	_, err = client.Get(s.URL)
	assert.ErrorIs(t, err, errRevoked)
}

// golang.org/x/net/http2 puts its connections into the Transport that it configures.
func TestResumeTLSSessionsSharesNoConnections(t *testing.T) {
	s := serve(t, "HTTP/2", func(http.ResponseWriter, *http.Request) {})
	plain := base(t, s)
	require.NoError(t, http2.ConfigureTransport(plain))
	resuming := hedge.ResumeTLSSessions(plain)
	t.Cleanup(resuming.CloseIdleConnections)
	for name, tr := range map[string]*http.Transport{"base": plain, "copy": resuming} {
		reused := false
		trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", s.URL, nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 2, resp.ProtoMajor, name)
		assert.False(t, reused, name)
	}
}

func TestResumeTLSSessionsKeepsProtocols(t *testing.T) {
	used := new(http.Transport)
	_, err := used.RoundTrip(new(http.Request)) // initializes its protocols
	require.Error(t, err)
	for name, row := range map[string]struct {
		base  *http.Transport
		http2 bool
	}{
		"zero":     {new(http.Transport), true},
		"used":     {used, true},
		"default":  {http.DefaultTransport.(*http.Transport), true},
		"config":   {&http.Transport{TLSClientConfig: new(tls.Config)}, false},
		"disabled": {&http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}, false},
	} {
		tr := hedge.ResumeTLSSessions(row.base)
		_, err := tr.RoundTrip(new(http.Request))
		require.Error(t, err)
		assert.Equal(t, row.http2, tr.TLSNextProto["h2"] != nil, name)
	}
}
