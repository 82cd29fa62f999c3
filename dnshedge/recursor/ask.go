package recursor

import (
	"context"
	"errors"
	"net/netip"

	"github.com/miekg/dns"
)

// question is what servers are asked.
type question struct {
	name  string // absolute, in lower case, as dns.CanonicalName returns it
	qtype uint16
	do    bool // the caller understands DNSSEC
	cd    bool
}

// task is a question to the servers of one zone.
type task struct {
	question
	zone string // absolute, in lower case

	// servers are the addresses known at first, in no order. When none is known, or all have
	// failed, more is asked for others. It blocks until it has some. It returns none if there
	// are no more, or an error that ends the task.
	servers []netip.AddrPort
	more    func(ctx context.Context) ([]netip.AddrPort, error)

	// judge reads a response, which has the ID and the question that were sent and is not cut. Nil
	// means that it is an answer. errLame: the server does not serve the zone, or cannot answer, so
	// that the next one is asked at once, and this one is not asked about the zone for a while.
	judge func(m *dns.Msg, server netip.AddrPort) error

	// spend is asked before each query, whatever it is for. Its error ends the task.
	spend func() error
}

// errLame is why a response is not taken: see task.
var errLame = errors.New("recursor: server does not serve the zone")

// errNoServers is the error of a task whose servers have all failed.
var errNoServers = errors.New("recursor: no server answers")

// fleet is all servers that are known, and how they are asked. It is safe for concurrent use.
type fleet struct{}

// ask has the servers of a zone answer t. It returns the first response that judge takes, as it
// came, or the error of spend or more, errNoServers, or the cause of ctx.
func (f *fleet) ask(ctx context.Context, t *task) (*dns.Msg, error) { return nil, errNoServers }

// spend takes a hedge from the budget, or reports false.
func (f *fleet) spend() bool { return false }
