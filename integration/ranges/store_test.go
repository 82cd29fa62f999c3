package ranges

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/rangeread"
)

const (
	size  = 2<<20 + 123      // of the object
	limit = 30 * time.Second // what waits for a stalled answer fails after this
)

// A store is a server with one object, and a way to read it.
type store struct {
	fetch rangeread.Fetch
	put   func([]byte) // another version of the object
	gate  *gate
}

// What a gate does to the next answer.
const (
	opens   = iota
	silent  // nothing comes
	halfway // the second half of the body does not come
	nothing // over gRPC: it ends well, without a message
)

// A gate stands before a server. It stalls answers until their clients leave, and counts connections and requests.
type gate struct {
	next        atomic.Int64 // what is done to the next answer
	left        atomic.Int64 // clients of answers that were stalled
	requests    atomic.Int64
	connections atomic.Int64
}

// counted counts the connections of a listener.
type counted struct {
	net.Listener
	gate *gate
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.gate.connections.Add(1)
	}
	return conn, err
}

// pass returns what is to be done to an answer, and what to call when that is over.
func (g *gate) pass() (what int64, over func()) {
	g.requests.Add(1)
	if what = g.next.Swap(opens); what == opens {
		return what, func() {}
	}
	return what, func() { g.left.Add(1) }
}

// before starts a server of HTTP/1.1 with the gate before h, and returns its address.
func (g *gate) before(t *testing.T, h http.Handler) string {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			h.ServeHTTP(w, r)
			return
		}
		what, over := g.pass()
		defer over()
		switch what {
		case opens:
			h.ServeHTTP(w, r)
		case silent:
			<-r.Context().Done()
		case halfway:
			recorded := httptest.NewRecorder()
			h.ServeHTTP(recorded, r)
			for name, values := range recorded.Header() {
				w.Header()[name] = values
			}
			w.WriteHeader(recorded.Code)
			_, _ = w.Write(recorded.Body.Next(recorded.Body.Len() / 2))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	s.Listener = counted{s.Listener, g}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

// transport returns one that closes its connections when the test ends, before the server does.
func transport(t *testing.T) *http.Transport {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxIdleConnsPerHost = 10
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// content is that of the object in one of its versions.
func content(version uint64) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(version)}).Read(b)
	return b
}

// check reads the object of a store in all the ways that a Fetch has to know.
func (s *store) check(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	object := content(1)
	s.put(object)
	t.Run("bytes", func(t *testing.T) { s.checkBytes(ctx, t, object) })
	t.Run("connections", func(t *testing.T) {
		before := s.gate.connections.Load()
		for off := int64(0); off < size; off += 200_000 {
			_, _ = s.get(ctx, t, rangeread.Range{Offset: off, Length: 1000})
		}
		assert.LessOrEqual(t, s.gate.connections.Load()-before, int64(1))
	})
	t.Run("end", func(t *testing.T) {
		for _, r := range []rangeread.Range{{Offset: size, Length: 10}, {Offset: size + 10, Length: 10}, {Offset: size, Length: -1}} {
			_, _, err := s.fetch(ctx, r)
			assert.ErrorIs(t, err, io.EOF, "%+v", r)
		}
	})
	t.Run("cancelled", func(t *testing.T) { s.checkCancelled(t) })
	t.Run("hedged", func(t *testing.T) { s.checkHedged(ctx, t, object) })
	t.Run("changed", func(t *testing.T) {
		_, info := s.get(ctx, t, rangeread.Range{Length: 10})
		s.put(content(2))
		_, _, err := s.fetch(ctx, rangeread.Range{Offset: 10, Length: 10, Match: info.Tag})
		assert.ErrorIs(t, err, rangeread.ErrChanged)
		b, now := s.get(ctx, t, rangeread.Range{Offset: 10, Length: 10})
		assert.Equal(t, content(2)[10:20], b)
		assert.NotEqual(t, info.Tag, now.Tag)
	})
}

func (s *store) checkBytes(ctx context.Context, t *testing.T, object []byte) {
	_, first := s.get(ctx, t, rangeread.Range{Length: 1})
	require.NotEmpty(t, first.Tag)
	for _, r := range []rangeread.Range{
		{Length: 1}, {Length: size}, {Length: -1}, {Offset: 1, Length: 1}, {Offset: 4096, Length: 1 << 20},
		{Offset: size - 1, Length: 1}, {Offset: size - 1, Length: -1}, {Offset: size - 10, Length: 1 << 20}, {Offset: 7, Length: -1},
	} {
		for _, r.Match = range []string{"", first.Tag} {
			b, info := s.get(ctx, t, r)
			last := int64(size)
			if r.Length >= 0 {
				last = min(r.Offset+r.Length, size)
			}
			assert.True(t, bytes.Equal(object[r.Offset:last], b), "%+v", r)
			assert.Equal(t, rangeread.Info{Offset: r.Offset, Length: last - r.Offset, Size: size, Tag: first.Tag}, info, "%+v", r)
		}
	}
}

// checkCancelled cancels an answer that does not come, and one whose body does not.
func (s *store) checkCancelled(t *testing.T) {
	for _, what := range []int64{silent, halfway} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		left := s.gate.left.Load()
		s.gate.next.Store(what)
		done := make(chan error, 1)
		go func() {
			body, _, err := s.fetch(ctx, rangeread.Range{Length: 1 << 20})
			if err == nil {
				_, err = io.Copy(io.Discard, body)
				body.Close()
			}
			done <- err
		}()
		require.Eventually(t, func() bool { return s.gate.next.Load() == opens }, limit, time.Millisecond)
		cancel()
		select {
		case err := <-done:
			assert.True(t, errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled, "%v", err) // gRPC has an error of its own
		case <-time.After(limit):
			require.Fail(t, "it goes on")
		}
		require.Eventually(t, func() bool { return s.gate.left.Load() == left+1 }, limit, time.Millisecond, "the server still sends")
	}
}

// checkHedged has a Reader read the object while answers do not come, and while bodies do not.
func (s *store) checkHedged(ctx context.Context, t *testing.T, object []byte) {
	// On a busy machine the reads before a stall are hedged too: the budget must pay for one more.
	r := rangeread.New(s.fetch, rangeread.Options{BudgetPercent: 400})
	defer r.Close()
	b := make([]byte, 1<<20)
	read := func(off int64) {
		n, err := r.ReadAtContext(ctx, b, off)
		require.NoError(t, err, "%+v", r.Store().Stats())
		require.True(t, bytes.Equal(object[off:off+int64(n)], b), "from %d on", off)
	}
	for off := range int64(20) {
		read(off * 1000)
	}
	wins := map[int64]func() int64{
		silent:  func() int64 { return r.Store().Stats().FirstByteWins },
		halfway: func() int64 { return r.Store().Stats().StallWins },
	}
	for what, won := range wins {
		// A hedge of the read before, which has lost, may still come and be stalled instead.
		for before := won(); won() == before; {
			s.gate.next.Store(what)
			read(7)
		}
	}
}

// get returns what a range of the object is.
func (s *store) get(ctx context.Context, t *testing.T, r rangeread.Range) ([]byte, rangeread.Info) {
	t.Helper()
	body, info, err := s.fetch(ctx, r)
	require.NoError(t, err, "%+v", r)
	b, err := io.ReadAll(body)
	require.NoError(t, errors.Join(err, body.Close()), "%+v", r)
	return b, info
}
