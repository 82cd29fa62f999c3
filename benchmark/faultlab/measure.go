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

// A resolveFunc resolves a DNS query with one of the compared resolvers.
type resolveFunc func(context.Context, query) (outcome, error)

// A resolver is one of the compared resolvers while it runs, on a host of its own.
type resolver struct {
	*testbed
	name    string
	resolve resolveFunc
	calls   lab.Recorder

	mu         sync.Mutex // guards the fields below
	asked      int
	denials    int
	lastAnswer time.Duration
}

// An outcome is the result of a DNS query: records, a denial of the name, or neither.
type outcome uint8

const (
	noRecords outcome = iota // the query failed, or the name has no records of the type
	hasRecords
	nameDenied
)

// newMessage returns q as a DNS message with EDNS, without which servers send no extended errors.
func (q query) newMessage() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.SetEdns0(1232, false)
	return m
}

func outcomeOf(m *dns.Msg, q query) outcome {
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

// measureQuery resolves q, the i-th query, and records its result unless ctx has ended. start is the start of the run.
func (r *resolver) measureQuery(ctx context.Context, start time.Time, i int, q query) {
	begin := time.Now()
	res, err := r.resolve(ctx, q)
	took := time.Since(begin)
	if ctx.Err() != nil {
		return
	}
	call := latency.Call{Start: begin.Sub(start), Latency: took, Index: int32(i), Winner: -1}
	isRight := err == nil && took <= QueryTimeout && (res == hasRecords || res == nameDenied && q.want == wantRecordsOrDenial)
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

func (r *resolver) newRow() Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := Row{Row: lab.Row{Contender: r.name, Calls: r.calls.SortedCalls(), Asked: r.asked}, Denials: r.denials, LastAnswer: r.lastAnswer}
	for _, h := range r.serverHosts() {
		row.Sent += r.Net.Link(r.name, h).Counters().UDP
	}
	return row
}
