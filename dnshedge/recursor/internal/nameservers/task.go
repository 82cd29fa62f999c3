package nameservers

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Task is a question to the servers of one zone.
type Task struct {
	Name string // absolute, in lower case, as dns.CanonicalName returns it
	Type uint16
	DO   bool // signatures are asked for as well
	CD   bool

	// Signed says that an answer without signatures is of no use. A server that does not understand EDNS cannot send
	// them: it does not serve the zone, and is not asked without.
	Signed bool

	Zone       string // absolute, in lower case
	AnyAddress bool   // servers may have addresses that mean something in one network only
	Minimised  bool   // there is another question if nobody answers this one: silence is no reason to let the zone rest

	// Brief ends the task when nothing was heard for some time, or all servers have been asked often enough and
	// all answers are overdue: another question has a better chance. Judge may set it.
	Brief bool
	// AwaitUntil returns until when answers are awaited although nothing is left to send and nothing was heard, which may become later. Nil, and the zero
	// time: for as long as losers are.
	AwaitUntil func() time.Time

	// Servers are the addresses known at first, in no order. When none is known, or all have
	// failed, More is asked for others. It blocks until it has some. It returns none if there
	// are no more with that effort, or an error that ends the task. It is called by a goroutine of its own,
	// once at a time, while the functions below may be called by that of Ask. Its context
	// is one for all calls, and ends some time after the task. The channel is closed when the task can no longer do
	// without; before, what is looked for is a hedge. Nil: there are no more.
	Servers  []netip.AddrPort
	FindMore func(ctx context.Context, e Effort, needed <-chan struct{}) ([]netip.AddrPort, error)

	// Judge reads a response, which has the ID and the question that were sent and is not cut. Nil
	// means that it is an answer. After any error the next one is asked at once. ErrLame: the server does not
	// serve the zone, as far as this name tells. Others are asked about the name first for a while; and about
	// the zone, if that happens for two names, one after the other. ErrFailed: the server cannot answer. Others are
	// asked about the zone first for a while, if that happens for four names.
	Judge func(m *dns.Msg, server netip.AddrPort) error

	// Avoid are servers whose answers to the same question have turned out to be of no use: all others are asked before, also those that More finds.
	Avoid []netip.AddrPort

	// Hedge reports whether all that the task finds out is for a hedge, as yet. Then each query is one: the budget
	// pays for it, or the task ends with ErrUnpaid. Nil: it is not.
	Hedge func() bool

	// Spend is asked before each query, whatever it is for. After an error nothing more is
	// sent, and the task ends with that error unless an answer comes in time; of a hedge, an error is
	// why that one is not sent. Nil: all is paid for.
	Spend func(hedge bool) error
}

// Effort is where More looks for servers. Each value includes those before.
type Effort int

const (
	// Glueless names of servers, of which no address is known, are looked up: an answer is late.
	Glueless Effort = 1 + iota
	// Outside of the zone, all names are looked up. All servers are silent, so it is no use to
	// look up names within the zone: the same servers would be asked.
	Outside
	// Everything may be looked up.
	Everything
)

// ErrLame is why a response is not taken: see Task.Judge.
var ErrLame = errors.New("recursor: server does not serve the zone")

// ErrFailed is why a response is not taken that tells of the question rather than of the zone: see Task.Judge.
var ErrFailed = errors.New("recursor: server cannot answer")

// ErrUnsigned is why a response is not taken that has no signatures which fit, although the zone is signed. Others are asked
// about the zone first for a while.
var ErrUnsigned = errors.New("recursor: server has no signatures that fit")

// ErrNoHedgeBudget is the error of a task that is part of a hedge, when the budget is spent.
var ErrNoHedgeBudget = errors.New("recursor: no hedge is left to pay for more queries")

// ErrNoServers is the error of a task whose servers have all failed.
var ErrNoServers = errors.New("recursor: no server answers")

// LocalError is ErrNoServers if nothing has left this machine, as when it has no network or no
// descriptors: that says nothing of the question.
type LocalError struct{ err error }

func (e *LocalError) Error() string   { return "recursor: no server can be asked: " + e.err.Error() }
func (e *LocalError) Unwrap() []error { return []error{ErrNoServers, e.err} }
