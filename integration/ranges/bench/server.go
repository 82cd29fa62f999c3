package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// serves is the variable of the environment that makes the program the server of an object of so many bytes.
const serves = "HEDGE_RANGES_SERVE"

// What the server does in the buckets that are not fine.
const (
	faulty = 100         // one answer in so many is late, and one stalls
	pause  = time.Second // how late, and how long
)

// word is what the eight bytes at an offset that is divisible by eight are.
func word(offset int64) uint64 { return uint64(offset+8) * 0x9E3779B97F4A7C15 }

// serve serves the object until the standard input ends, and prints its address.
func serve(size int64) error {
	file, err := os.CreateTemp("", "object")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return err
	}
	w := bufio.NewWriterSize(file, 1<<20)
	var b [8]byte
	for off := int64(0); off < size; off += 8 {
		binary.LittleEndian.PutUint64(b[:], word(off))
		_, _ = w.Write(b[:])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(l, &bucket{file: file, size: size}) }() //nolint:gosec // on loopback, for a while
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// start starts the server and returns its address.
func start(ctx context.Context, size int64) (address string, stop func(), err error) {
	program, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env, cmd.Stderr = append(os.Environ(), fmt.Sprintf("%s=%d", serves, size)), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { in.Close(); _ = cmd.Wait() }
	address, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the server: %w", err)
	}
	return strings.TrimSpace(address), stop, nil
}

// A bucket answers GET and HEAD for one object as S3 and the XML API of Google Cloud Storage do. The name of the bucket says how: "fine"
// answers at once, "faulty" has faults, and so has "far", which takes some 15 ms for every answer as well. POST with a number begins the
// same sequence of faults again.
type bucket struct {
	file *os.File
	size int64

	mu     sync.Mutex // guards the field below
	faults *rand.Rand
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		seed, _ := strconv.ParseUint(r.URL.Query().Get("seed"), 10, 64)
		b.mu.Lock()
		b.faults = rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // not a secret
		b.mu.Unlock()
		return
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	first, at := b.draw(name)
	if r.Method == http.MethodGet && !sleep(r.Context(), first) {
		return
	}
	h := w.Header()
	h.Set("ETag", `"one"`)
	h.Set("X-Goog-Generation", "1")
	h.Set("Content-Type", "application/octet-stream")
	if r.Method == http.MethodGet && at >= 0 {
		w = &halting{ResponseWriter: w, ctx: r.Context(), at: at}
	}
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), io.NewSectionReader(b.file, 0, b.size))
}

// draw returns how late the next answer is, and after which share of its body it stalls: -1, it does not.
func (b *bucket) draw(name string) (first time.Duration, at float64) {
	if name == "fine" {
		return 0, -1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	near, kind, share := b.faults.NormFloat64(), b.faults.IntN(faulty), b.faults.Float64()
	if name == "far" {
		first = time.Duration((15 + 2*near) * float64(time.Millisecond))
	}
	switch kind {
	case 0:
		return first + pause, -1
	case 1:
		return first, share
	}
	return first, -1
}

// sleep reports whether the client still waits.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// halting is an answer whose body stalls once.
type halting struct {
	http.ResponseWriter
	ctx  context.Context
	at   float64 // the share of the body before that; -1: it has stalled
	left int64
}

func (h *halting) WriteHeader(status int) {
	length, _ := strconv.ParseInt(h.Header().Get("Content-Length"), 10, 64)
	h.left = int64(h.at * float64(length))
	h.ResponseWriter.WriteHeader(status)
}

func (h *halting) Write(b []byte) (n int, err error) {
	if h.at >= 0 && int64(len(b)) > h.left {
		if n, err = h.ResponseWriter.Write(b[:h.left]); err != nil {
			return n, err
		}
		if err = http.NewResponseController(h.ResponseWriter).Flush(); err != nil {
			return n, err
		}
		h.at = -1
		if !sleep(h.ctx, pause) {
			return n, h.ctx.Err()
		}
		b = b[n:]
	}
	h.left -= int64(len(b))
	m, err := h.ResponseWriter.Write(b)
	return n + m, err
}
