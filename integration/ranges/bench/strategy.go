package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"cloud.google.com/go/storage"
	"cloud.google.com/go/storage/experimental"
	"github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"google.golang.org/api/option"

	"github.com/gohedge/hedge/integration/ranges"
	"github.com/gohedge/hedge/rangeread"
)

// A client is a way to read the object, with a transport of its own.
type client struct {
	readAt func(ctx context.Context, p []byte, off int64) error
	whole  func(ctx context.Context, to *sink) error
	close  func()
}

// A strategy makes a client for the object in a bucket.
type strategy struct {
	name string
	make func(ctx context.Context, w *wire, bucket string) (*client, error)
}

var strategies = []strategy{
	{"net/http", plain},
	{"**rangeread** over net/http", func(_ context.Context, w *wire, bucket string) (*client, error) {
		return ranged(ranges.HTTP(&http.Client{Transport: w.transport}, w.url(bucket))), nil
	}},
	{"**rangeread** over s3.Client", func(_ context.Context, w *wire, bucket string) (*client, error) {
		return ranged(ranges.S3(w.s3(), bucket, object)), nil
	}},
	{"manager.Downloader", downloader},
	{"minio-go GetObject", minioObject},
	{"storage, stall timeout 500 ms", google(0)},
	{"storage, stall timeout 20 ms", google(20 * time.Millisecond)},
}

const object = "catalog"

// A wire is the transport of a client, which counts.
type wire struct {
	address   string
	transport *http.Transport
	received  atomic.Int64 // bytes
	opened    atomic.Int64 // connections
}

func newWire(address string) *wire {
	w := &wire{address: address, transport: http.DefaultTransport.(*http.Transport).Clone()}
	w.transport.MaxIdleConnsPerHost = 100
	var d net.Dialer
	w.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.opened.Add(1)
		return &connection{c, w}, nil
	}
	return w
}

func (w *wire) url(bucket string) string { return "http://" + w.address + "/" + bucket + "/" + object }

func (w *wire) s3() *s3.Client {
	return s3.New(s3.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String("http://" + w.address), UsePathStyle: true, HTTPClient: &http.Client{Transport: w.transport},
		Credentials: awscredentials.NewStaticCredentialsProvider("key", "secret", ""), DisableLogOutputChecksumValidationSkipped: true,
	})
}

// A connection counts what it receives.
type connection struct {
	net.Conn
	wire *wire
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wire.received.Add(int64(n))
	return n, err
}

// plain is what an io.ReaderAt over HTTP is without a library: a request for each read.
func plain(_ context.Context, w *wire, bucket string) (*client, error) {
	get := func(ctx context.Context, asked string) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url(bucket), nil)
		if err != nil {
			return nil, err
		}
		if asked != "" {
			req.Header.Set("Range", asked)
		}
		resp, err := w.transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	return &client{
		readAt: func(ctx context.Context, p []byte, off int64) error {
			return buffer(p).fill(get(ctx, span(p, off)))
		},
		whole: func(ctx context.Context, to *sink) error {
			return to.pour(get(ctx, ""))
		},
		close: func() {},
	}, nil
}

// span is the header Range of a read.
func span(p []byte, off int64) string { return fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1) }

func ranged(fetch rangeread.Fetch) *client {
	r := rangeread.NewStore(rangeread.Options{}).Open(fetch)
	return &client{
		readAt: func(ctx context.Context, p []byte, off int64) error {
			_, err := r.ReadAtContext(ctx, p, off)
			return err
		},
		whole: func(ctx context.Context, to *sink) error {
			return to.pour(r.NewReader(ctx, 0, -1), nil)
		},
		close: func() { r.Close() },
	}
}

func downloader(_ context.Context, w *wire, bucket string) (*client, error) {
	d := manager.NewDownloader(w.s3())
	return &client{
		readAt: func(ctx context.Context, p []byte, off int64) error {
			in := &s3.GetObjectInput{Bucket: &bucket, Key: aws.String(object), Range: aws.String(span(p, off))}
			n, err := d.Download(ctx, buffer(p), in)
			if err == nil && n < int64(len(p)) {
				return io.ErrUnexpectedEOF
			}
			return err
		},
		whole: func(ctx context.Context, to *sink) error {
			_, err := d.Download(ctx, to, &s3.GetObjectInput{Bucket: &bucket, Key: aws.String(object)})
			return err
		},
		close: func() {},
	}, nil
}

// A buffer is an io.WriterAt over memory.
type buffer []byte

func (b buffer) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

// fill reads what a client has returned, which is as long as b.
func (b buffer) fill(in io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.ReadFull(in, b)
	return errors.Join(err, in.Close())
}

func minioObject(_ context.Context, w *wire, bucket string) (*client, error) {
	c, err := minio.New(w.address, &minio.Options{Creds: credentials.NewStaticV4("key", "secret", ""), Region: "eu-central-1", Transport: w.transport})
	if err != nil {
		return nil, err
	}
	return &client{
		// An Object serves one read at a time, so that each read has its own.
		readAt: func(ctx context.Context, p []byte, off int64) error {
			var o minio.GetObjectOptions
			if err := o.SetRange(off, off+int64(len(p))-1); err != nil {
				return err
			}
			return buffer(p).fill(c.GetObject(ctx, bucket, object, o))
		},
		whole: func(ctx context.Context, to *sink) error {
			return to.pour(c.GetObject(ctx, bucket, object, minio.GetObjectOptions{}))
		},
		close: func() {},
	}, nil
}

// google is Google's client, whose stall timeout is at least least; 0: its default.
func google(least time.Duration) func(context.Context, *wire, string) (*client, error) {
	return func(ctx context.Context, w *wire, bucket string) (*client, error) {
		c, err := storage.NewClient(ctx, option.WithHTTPClient(&http.Client{Transport: w.transport}),
			experimental.WithReadStallTimeout(&experimental.ReadStallTimeoutConfig{Min: least, TargetPercentile: 0.99}))
		if err != nil {
			return nil, err
		}
		o := c.Bucket(bucket).Object(object)
		return &client{
			readAt: func(ctx context.Context, p []byte, off int64) error {
				return buffer(p).fill(o.NewRangeReader(ctx, off, int64(len(p))))
			},
			whole: func(ctx context.Context, to *sink) error {
				return to.pour(o.NewReader(ctx))
			},
			close: func() { _ = c.Close() },
		}, nil
	}
}
