package group

import (
	"errors"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const maxServfails = 3 // number of servers of a group that may respond with SERVFAIL before an exchange stops trying further servers

// errNoAnswer is the error of an attempt in which every server that was tried responded with a failure.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// exchangeFailures collects the failure responses and errors of the servers of one exchange. Exchange.mu guards it.
type exchangeFailures struct {
	responses     int          // number of servers whose failure response could be read
	servfails     int          // number of servers whose first failure response was SERVFAIL
	paidFailovers int          // number of failovers that cost a token
	response      *wire.Answer // the failure response that Exchange.FirstFailure returns; nil: none
	failureServer *Server      // the server that sent response; nil: none
	primaryServer *Server      // the server whose error the primary returned; nil: the primary has not failed
	hasRefused    bool         // at least one server has refused a connection
}

// recordFailure records that the server has failed: with the given response, or with err if response is nil. It updates
// history, the record of the exchange's queries to that server. earlierFailures counts earlier failure responses; it is
// 0 after a network error.
func (f *exchangeFailures) recordFailure(history *serverHistory, server *Server, response *wire.Answer, err error) (earlierFailures int) {
	isResponse := response != nil || transport.IsTruncationError(err) // truncated, and cannot be fetched in full
	history.hasBeenUnable = history.hasBeenUnable || isResponse || isConnectionRefused(err)
	if !isResponse {
		return 0
	}
	earlierFailures = history.failures
	history.failures++
	if response == nil {
		return earlierFailures
	}
	if earlierFailures == 0 {
		f.responses++
		if response.Rcode() == dns.RcodeServerFailure {
			f.servfails++
		}
	}
	if f.response == nil || server.IsDeliberateFailure(response) && !f.failureServer.IsDeliberateFailure(f.response) {
		f.response, f.failureServer = response, server
	}
	return earlierFailures
}
