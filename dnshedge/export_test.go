package dnshedge

import (
	"net"
	"time"

	"github.com/miekg/dns"
)

// CheckWire reports whether resp is taken for the response to a query in wire
// format, and what becomes of it: the answer to a caller, in both formats.
func CheckWire(query, resp []byte) (m *dns.Msg, wire []byte, err error) {
	q, err := parseQuery(query)
	if err != nil {
		return nil, nil, err
	}
	if err := q.check(resp, q.id); err != nil {
		return nil, nil, err
	}
	a, err := newAnswer(resp, q)
	if err != nil {
		return nil, nil, err
	}
	if err := a.seal(); err != nil {
		return nil, nil, err
	}
	ask := new(dns.Msg)
	if err := ask.Unpack(query); err != nil {
		return nil, nil, err
	}
	return a.message(ask, q, view{age: time.Second}), a.append(nil, q, view{age: time.Second}, 0), nil
}

// ReadFrames gives a connection to the reader of a pipe, and waits until it ends.
func ReadFrames(c net.Conn) (ignored int) {
	obs := &countingObserver{}
	s := newStream(opener{}, obs, nil, defaultUDPSize, func() bool { return false })
	p := newPipe(s, &s.lanes[0], c)
	for range 4 {
		_, _ = p.register(&waiter{q: rootQuery, answer: make(chan []byte, 1)})
	}
	p.read()
	s.close()
	return obs.n
}

type countingObserver struct{ n int }

func (o *countingObserver) wrote()                                {}
func (o *countingObserver) answered(time.Duration, time.Duration) {}
func (o *countingObserver) shook(time.Duration)                   {}
func (o *countingObserver) ignored(error)                         { o.n++ }
func (o *countingObserver) retried()                              {}
func (o *countingObserver) abandon() bool                         { return true }
func (o *countingObserver) abandoned()                            {}
func (o *countingObserver) stall() time.Duration                  { return time.Second }
func (o *countingObserver) linger() time.Duration                 { return time.Second }
