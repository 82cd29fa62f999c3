package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"time"
)

// A table is columns one after another, and a footer with the offset of each.
const (
	columns    = 8
	columnSize = 128 << 10
	footerSize = 8 * columns
)

func newTable() []byte {
	var b bytes.Buffer
	var footer []byte
	for i := range columns {
		footer = binary.LittleEndian.AppendUint64(footer, uint64(b.Len()))
		b.Write(bytes.Repeat([]byte{byte(i)}, columnSize))
	}
	b.Write(footer)
	return b.Bytes()
}

// newServer starts a server of tables. One answer in a hundred is 300 ms late, and one body in a hundred stops for as long.
func newServer() *httptest.Server {
	table := newTable()
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sleep(r, time.Duration(1000+rand.IntN(2000))*time.Microsecond)
		switch rand.IntN(100) {
		case 0:
			sleep(r, 300*time.Millisecond)
		case 1:
			w = &stopping{w, r}
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(table))
	}))
}

// stopping stops in the middle of what is written.
type stopping struct {
	http.ResponseWriter
	r *http.Request
}

func (s *stopping) Write(p []byte) (int, error) {
	n, err := s.ResponseWriter.Write(p[:len(p)/2])
	if err != nil {
		return n, err
	}
	_ = http.NewResponseController(s.ResponseWriter).Flush()
	sleep(s.r, 300*time.Millisecond)
	m, err := s.ResponseWriter.Write(p[n:])
	return n + m, err
}

// sleep sleeps, but not longer than anybody waits for r.
func sleep(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}
