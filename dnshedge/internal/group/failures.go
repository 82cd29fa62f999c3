package group

import (
	"errors"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const maxServfails = 3 // servers with SERVFAIL after which no further server is asked

// errNoAnswer is the error of an attempt whose servers responded with failures.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// failures are the responses and errors of an exchange by which servers could not answer. The lock of the exchange guards them.
type failures struct {
	unable         int          // servers that could not answer, or refused a connection
	responses      int          // servers that responded with a failure
	servfails      int          // servers whose first response was SERVFAIL
	response       *wire.Answer // the first failure, or the first that is the decision of a healthy server; nil: there is none
	responseServer *Server      // of response
	primaryServer  *Server      // that the error of the primary is about
	hasRefused     bool         // a server has refused a connection
}

// record stores the failure of a server: a response, which may be nil, or an error. It returns the number of earlier failures of that server.
func (f *failures) record(use *serverUse, from *Server, response *wire.Answer, err error) (earlier int) {
	isResponse := response != nil || transport.IsOnlyTruncated(err)
	if (isResponse || IsRefused(err)) && !use.isUnable {
		use.isUnable = true
		f.unable++
	}
	if !isResponse {
		return 0
	}
	earlier = use.failures
	use.failures++
	if response == nil {
		return earlier
	}
	if earlier == 0 {
		f.responses++
		if response.Rcode() == dns.RcodeServerFailure {
			f.servfails++
		}
	}
	if f.response == nil || from.IsDecision(response) && !f.responseServer.IsDecision(f.response) {
		f.response, f.responseServer = response, from
	}
	return earlier
}
