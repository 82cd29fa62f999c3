package rangeread_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/rangeread"
)

// A replacedObject is an object whose content and tag a test replaces. It counts requests.
type replacedObject struct {
	requests int64 // first, because atomic operations on 32 bits need it aligned
	content  string
	tag      string
	lenient  bool // it ignores the tag that a request names
}

func (o *replacedObject) fetch(_ context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
	atomic.AddInt64(&o.requests, 1)
	if !o.lenient && r.Match != "" && r.Match != o.tag {
		return nil, rangeread.Info{}, fmt.Errorf("status 412: %w", rangeread.ErrChanged)
	}
	size := int64(len(o.content))
	if r.Offset >= size {
		return nil, rangeread.Info{}, io.EOF
	}
	end := min(r.Offset+r.Length, size)
	info := rangeread.Info{Offset: r.Offset, Length: end - r.Offset, Size: size, Tag: o.tag}
	return io.NopCloser(strings.NewReader(o.content[r.Offset:end])), info, nil
}

// TestReaderKeepsErrChanged replaces the object and puts the first version back: every kind of read fails, and none asks the store again.
func TestReaderKeepsErrChanged(t *testing.T) {
	first := strings.Repeat("first one ", 1000)
	second := strings.Repeat("another 1 ", 1000)
	reads := map[string]func(r *rangeread.Reader) error{
		"ReadAt":           func(r *rangeread.Reader) error { _, err := r.ReadAt(make([]byte, 5), 7); return err },
		"ReadAt of parts":  func(r *rangeread.Reader) error { _, err := r.ReadAt(make([]byte, 9000), 0); return err },
		"ReadAt of none":   func(r *rangeread.Reader) error { _, err := r.ReadAt(nil, 0); return err },
		"ReadAt at an end": func(r *rangeread.Reader) error { _, err := r.ReadAt(make([]byte, 5), 20000); return err },
		"NewReader": func(r *rangeread.Reader) error {
			_, err := io.ReadAll(r.NewReader(context.Background(), 0, -1))
			return err
		},
		"WriteTo": func(r *rangeread.Reader) error {
			_, err := io.Copy(io.Discard, r.NewReader(context.Background(), 0, 9000))
			return err
		},
		"Size": func(r *rangeread.Reader) error { _, err := r.Size(context.Background()); return err },
	}
	for name, changed := range map[string]replacedObject{
		"tag, refused by the store": {content: second, tag: `"2"`},
		"tag, ignored by the store": {content: second, tag: `"2"`, lenient: true},
		"tag that is gone":          {content: second, lenient: true},
		"size":                      {content: second + "longer", tag: `"1"`},
		"size, shorter":             {content: second[:9000], tag: `"1"`},
	} {
		for _, finder := range []string{"ReadAt", "ReadAt of parts", "NewReader", "WriteTo"} {
			t.Run(name+"/"+finder, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := &replacedObject{content: first, tag: `"1"`, lenient: changed.lenient}
					r := rangeread.New(o.fetch, rangeread.Options{PartSize: 4096})
					defer r.Close()
					require.NoError(t, reads["ReadAt"](r))
					o.content, o.tag = changed.content, changed.tag
					require.ErrorIs(t, reads[finder](r), rangeread.ErrChanged)
					synctest.Wait() // for parts that were asked for at the same time
					o.content, o.tag = first, `"1"`
					before := atomic.LoadInt64(&o.requests)
					for later, read := range reads {
						assert.ErrorIs(t, read(r), rangeread.ErrChanged, later)
					}
					assert.Equal(t, before, atomic.LoadInt64(&o.requests), "requests after ErrChanged")
				})
			})
		}
	}
}

// TestReaderKeepsErrChangedWithoutTags has three versions of which the third is as long as the first.
func TestReaderKeepsErrChangedWithoutTags(t *testing.T) {
	o := &replacedObject{content: "first one."}
	r := rangeread.New(o.fetch, rangeread.Options{})
	p := make([]byte, 5)
	_, err := r.ReadAt(p, 0)
	require.NoError(t, err)
	o.content = "the second one"
	_, err = r.ReadAt(p, 0)
	require.ErrorIs(t, err, rangeread.ErrChanged)
	o.content = "third one."
	n, err := r.ReadAt(p, 0)
	assert.ErrorIs(t, err, rangeread.ErrChanged)
	assert.Zero(t, n)

	_, err = rangeread.New(o.fetch, rangeread.Options{}).ReadAt(p, 0)
	require.NoError(t, err, "a Reader that is opened anew")
	assert.Equal(t, "third", string(p))
}

// TestErrChangedEndsOpenReaders has a sequential reader in the middle of the object while another read finds a change.
func TestErrChangedEndsOpenReaders(t *testing.T) {
	o := &replacedObject{content: strings.Repeat("first one ", 1000)}
	r := rangeread.New(o.fetch, rangeread.Options{PartSize: 4096, MaxBytes: -1})
	open := r.NewReader(t.Context(), 0, -1)
	defer open.Close()
	head := make([]byte, 10)
	_, err := io.ReadFull(open, head)
	require.NoError(t, err)

	o.content += "longer"
	_, err = r.ReadAt(head, 0)
	require.ErrorIs(t, err, rangeread.ErrChanged)
	o.content = strings.Repeat("third one ", 1000)
	rest, err := io.ReadAll(open)
	assert.ErrorIs(t, err, rangeread.ErrChanged)
	assert.NotContains(t, string(rest), "third")
}

// TestReaderKeepsErrChangedOfItsFirstRequest has a Fetch that finds a change before anything was read.
func TestReaderKeepsErrChangedOfItsFirstRequest(t *testing.T) {
	calls := 0
	o := &replacedObject{content: "0123456789"}
	r := rangeread.New(func(ctx context.Context, asked rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		if calls++; calls == 1 {
			return nil, rangeread.Info{}, fmt.Errorf("%w: its generation is gone", rangeread.ErrChanged)
		}
		return o.fetch(ctx, asked)
	}, rangeread.Options{})
	_, first := r.Size(t.Context())
	require.ErrorIs(t, first, rangeread.ErrChanged)
	_, err := r.ReadAt(make([]byte, 1), 0)
	assert.Equal(t, first, err)
}
