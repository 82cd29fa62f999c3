package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A row is what a strategy did.
type row struct {
	took     []time.Duration // each read
	all      time.Duration   // all of them
	wanted   int64           // bytes
	received int64
	opened   int64 // connections
}

// random has each strategy read at random offsets, in rounds.
func (p plan) random(ctx context.Context, address, bucket string) ([]row, error) {
	rows, clients, wires := make([]row, len(strategies)), make([]*client, len(strategies)), make([]*wire, len(strategies))
	for i, s := range strategies {
		wires[i] = newWire(address)
		defer wires[i].transport.CloseIdleConnections()
		var err error
		if clients[i], err = s.make(ctx, wires[i], bucket); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		defer clients[i].close()
	}
	for round := range uint64(p.rounds) {
		for i, s := range strategies {
			if err := again(ctx, address, p.seed+round); err != nil {
				return nil, err
			}
			if err := p.round(ctx, clients[i], p.seed+round, &rows[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	for i := range rows {
		rows[i].received, rows[i].opened = wires[i].received.Load(), wires[i].opened.Load()
	}
	return rows, nil
}

// round adds one to a row.
func (p plan) round(ctx context.Context, c *client, seed uint64, r *row) error {
	took := make([]time.Duration, p.reads)
	errs := make([]error, p.workers)
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for w := range p.workers {
		all.Go(func() {
			b := make([]byte, p.part)
			for i := next.Add(1) - 1; i < int64(p.reads); i = next.Add(1) - 1 {
				off := rand.New(rand.NewPCG(seed, uint64(i))).Int64N((p.size-int64(p.part))/8) * 8 //nolint:gosec // not a secret
				start := time.Now()
				if err := c.readAt(ctx, b, off); err != nil && err != io.EOF {
					errs[w] = fmt.Errorf("ReadAt(%d): %w", off, err)
					return
				}
				took[i] = time.Since(start)
				if errs[w] = check(b, off); errs[w] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	r.all += time.Since(began)
	r.took = append(r.took, took...)
	r.wanted += int64(p.reads) * int64(p.part)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// A pass is one run of a strategy through the whole object.
type pass struct {
	took time.Duration
	cpu  time.Duration // of this process; the server is another one
}

// sequential returns the passes of each strategy. Nothing stalls.
func (p plan) sequential(ctx context.Context, address string) ([][]pass, error) {
	passes := make([][]pass, len(strategies))
	for range p.runs {
		for i, s := range strategies {
			w := newWire(address)
			c, err := s.make(ctx, w, "fine")
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			to := new(sink)
			start, busy := time.Now(), cpu()
			err = c.whole(ctx, to)
			passes[i] = append(passes[i], pass{time.Since(start), cpu() - busy})
			c.close()
			w.transport.CloseIdleConnections()
			switch {
			case err != nil:
				return nil, fmt.Errorf("%s: %w", s.name, err)
			case to.wrong.Load():
				return nil, fmt.Errorf("%s: wrong bytes", s.name)
			case to.size.Load() != p.size:
				return nil, fmt.Errorf("%s: %d bytes of %d", s.name, to.size.Load(), p.size)
			}
		}
	}
	return passes, nil
}

// check returns an error if b is not what the object has at off.
func check(b []byte, off int64) error {
	const step = 4096
	for at := (step - off%step) % step; at+8 <= int64(len(b)); at += step {
		if binary.LittleEndian.Uint64(b[at:]) != word(off+at) {
			return fmt.Errorf("wrong bytes at %d", off+at)
		}
	}
	return nil
}

// A sink checks what is written to it, in order or not.
type sink struct {
	size  atomic.Int64 // bytes that were written
	wrong atomic.Bool
}

// pour reads what a client has returned to its end.
func (s *sink) pour(in io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(s, in)
	return errors.Join(err, in.Close())
}

func (s *sink) Write(p []byte) (int, error) { return s.WriteAt(p, s.size.Load()) }

func (s *sink) WriteAt(p []byte, off int64) (int, error) {
	s.size.Add(int64(len(p)))
	if check(p, off) != nil {
		s.wrong.Store(true)
	}
	return len(p), nil
}
