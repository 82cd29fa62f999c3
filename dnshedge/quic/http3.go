package quic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/gohedge/hedge/dnshedge"
)

func init() {
	dnshedge.RegisterProtocol(dnshedge.Protocol{Scheme: "h3", RFC: 9114, Port: http3Port, Path: "/dns-query", Dial: dialHTTP3})
}

const (
	http3Port = "443"
	mediaType = "application/dns-message"

	http3UniStreams = 3       // for control and for the two directions of QPACK (RFC 9114 §6.2)
	maxReplyHeader  = 1 << 14 // bytes of a response's header
)

// An http3Conn is a connection for DNS over HTTP/3 to an upstream.
type http3Conn struct {
	*upstreamConn
	client *http3.ClientConn
	url    url.URL // without a query
	post   bool
}

var _ dnshedge.ProtocolConn = (*http3Conn)(nil)

// dialHTTP3 opens a connection for DNS over HTTP/3 to the upstream to. It is the Dial function of the Protocol with the
// scheme h3.
func dialHTTP3(ctx context.Context, to dnshedge.DialTarget) (dnshedge.ProtocolConn, error) {
	u, err := serverURL(to)
	if err != nil {
		return nil, err
	}
	c, err := dialConn(ctx, to, alpnHTTP3, &quicgo.Config{MaxIncomingUniStreams: http3UniStreams})
	if err != nil {
		return nil, err
	}
	conn := &http3Conn{upstreamConn: c, url: u, post: to.Post}
	conn.client = (&http3.Transport{DisableCompression: true, MaxResponseHeaderBytes: maxReplyHeader}).NewClientConn(c.Conn)
	c.abortCode, c.sendQuery = quicgo.ApplicationErrorCode(http3.ErrCodeNoError), conn.sendRootQuery
	c.checkStream = func(ctx context.Context) error {
		_, err := conn.client.OpenRequestStream(ctx)
		return err
	}
	return conn, nil
}

// serverURL returns the URL of the upstream. It omits the default port.
func serverURL(to dnshedge.DialTarget) (url.URL, error) {
	host, port, err := net.SplitHostPort(to.Addr)
	if err != nil {
		return url.URL{}, err
	}
	switch {
	case port != http3Port:
		host = to.Addr
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	path, err := url.PathUnescape(to.Path)
	return url.URL{Scheme: "https", Host: host, Path: path, RawPath: to.Path}, err
}

// Exchange sends a query as an HTTP request, and returns the response. If ctx ends, the request is cancelled. It
// implements dnshedge.ProtocolConn. It returns dnshedge.ErrNoStream if the server permits no further stream in time.
func (c *http3Conn) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	watch := c.watchSilence()
	defer watch.stop()
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	unsent := time.AfterFunc(streamTimeout, cancel)
	defer unsent.Stop()
	var wrote atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() {
		unsent.Stop()
		wrote.Store(true)
		watch.querySent.Store(true)
	}}
	request, err := c.newRequest(httptrace.WithClientTrace(streamCtx, trace), query)
	if err != nil {
		return nil, err
	}
	response, err := c.client.RoundTrip(request)
	switch {
	case err != nil && !wrote.Load() && streamCtx.Err() != nil && ctx.Err() == nil:
		return nil, dnshedge.ErrNoStream
	case err != nil:
		return nil, c.explainRequestError(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		pause, _ := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16)
		return nil, &dnshedge.StatusError{Code: response.StatusCode, RetryAfter: time.Duration(pause) * time.Second}
	}
	if t, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || t != mediaType {
		return nil, fmt.Errorf("dnshedge/quic: response is %q; want %s", response.Header.Get("Content-Type"), mediaType)
	}
	b, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	switch {
	case err != nil:
		return nil, c.explainRequestError(ctx, err)
	case len(b) == maxMessage:
		return nil, errExtraData
	case len(b) < headerLen:
		return nil, errShortMessage
	}
	return b, nil
}

// sendRootQuery sends a probe, a query for the servers of the root, and waits for the response until ctx ends. It does
// nothing if the server permits no further stream.
func (c *http3Conn) sendRootQuery(ctx context.Context) {
	trace := &httptrace.ClientTrace{WroteHeaders: func() { c.probeSent.Store(true) }}
	_, _ = c.Exchange(httptrace.WithClientTrace(ctx, trace), rootQuery)
}

// newRequest returns the HTTP request for a query: with POST if Upstream.Post is set, and otherwise with GET, so that
// HTTP caches may answer it.
func (c *http3Conn) newRequest(ctx context.Context, query []byte) (*http.Request, error) {
	u, method, body := c.url, http.MethodGet, io.Reader(nil)
	if c.post {
		method, body = http.MethodPost, bytes.NewReader(query)
	} else {
		u.RawQuery = "dns=" + base64.RawURLEncoding.EncodeToString(query)
	}
	request, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", mediaType)
	request.Header.Set("User-Agent", "")
	if c.post {
		request.Header.Set("Content-Type", mediaType)
	}
	return request, nil
}

// explainRequestError converts the error of a failed request to the one for the caller. That is the reason for which this
// side has ended the connection, if it has, or else the cause of ctx, if ctx has ended. Otherwise it is err.
func (c *http3Conn) explainRequestError(ctx context.Context, err error) error {
	if f := c.failure.Load(); f != nil {
		return *f
	}
	return cmp.Or(context.Cause(ctx), err)
}
