package rangeread_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/gohedge/hedge/rangeread"
)

// memory returns a Fetch that reads from memory without delay.
func memory(object []byte) rangeread.Fetch {
	return func(_ context.Context, r rangeread.Range) (io.ReadCloser, rangeread.Info, error) {
		end := min(r.Offset+r.Length, int64(len(object)))
		info := rangeread.Info{Offset: r.Offset, Length: end - r.Offset, Size: int64(len(object)), Tag: "1"}
		return io.NopCloser(bytes.NewReader(object[r.Offset:end])), info, nil
	}
}

// BenchmarkReadAt measures the cost of a read without the time of the store.
func BenchmarkReadAt(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 32 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			object := rangeread.New(memory(make([]byte, size)), rangeread.Options{})
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := object.ReadAt(p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkNewReader copies an object of 256 MiB.
func BenchmarkNewReader(b *testing.B) {
	object := rangeread.New(memory(make([]byte, 256<<20)), rangeread.Options{})
	b.SetBytes(256 << 20)
	b.ReportAllocs()
	for b.Loop() {
		r := object.NewReader(b.Context(), 0, -1)
		if _, err := io.Copy(io.Discard, r); err != nil {
			b.Fatal(err)
		}
		_ = r.Close()
	}
}
