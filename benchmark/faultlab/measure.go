package faultlab

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A resolveFunc resolves a query.
type resolveFunc func(context.Context, query) (result, error)

// A resolver is a contender at work, on the host of its name.
type resolver struct {
	*resolverLab
	name    string
	resolve resolveFunc
	close   func()
	calls   lab.Recorder

	mu         sync.Mutex // guards the fields below
	asked      int
	denials    int
	lastAnswer time.Duration
}

// A result is the outcome of a query.
type result uint8

const (
	noRecords result = iota // the query failed, or the name has no records of the type
	hasRecords
	nameDenied
)

// message returns the query with EDNS, without which servers send no extended errors.
func (q query) message() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.SetEdns0(1232, false)
	return m
}

// resultOf returns the result that a response has, which may be nil.
func resultOf(m *dns.Msg, q query) result {
	switch {
	case m == nil:
		return noRecords
	case m.Rcode == dns.RcodeNameError:
		return nameDenied
	case m.Rcode == dns.RcodeSuccess && slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == q.qtype }):
		return hasRecords
	}
	return noRecords
}

// measureQuery resolves query i and records the call. start is the start of the run.
func (r *resolver) measureQuery(ctx context.Context, start time.Time, i int, q query) {
	begin := time.Now()
	res, err := r.resolve(ctx, q)
	took := time.Since(begin)
	if ctx.Err() != nil {
		return
	}
	call := latency.Call{Start: begin.Sub(start), Latency: took, Index: int32(i), Winner: -1}
	isRight := err == nil && took <= Timeout && (res == hasRecords || res == nameDenied && q.want == wantRecordsOrDenial)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if q.want == wantNothing {
		return
	}
	if isRight {
		call.Winner = 0
		r.lastAnswer = max(r.lastAnswer, call.Start+took)
		if res == nameDenied {
			r.denials++
		}
	}
	r.calls.Add(call)
}

// row returns the results of the resolver.
func (r *resolver) row() Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := Row{Row: lab.Row{Contender: r.name, Calls: r.calls.SortedCalls(), Asked: r.asked}, Denials: r.denials, LastAnswer: r.lastAnswer}
	for _, h := range r.serverHosts() {
		row.Sent += r.net.Link(r.name, h).Counters().UDP
	}
	return row
}
