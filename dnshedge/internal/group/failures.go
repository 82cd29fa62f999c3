package group

import (
	"errors"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const maxServfails = 3 // number of servers with SERVFAIL after which no further server is asked

// errNoAnswer is the error of an attempt whose servers all responded with failures.
var errNoAnswer = errors.New("dnshedge: no server answered the question")

// failures holds the failure responses and errors of an exchange. The lock of the exchange guards it.
type failures struct {
	unable         int          // number of servers that could not answer or refused a connection
	responses      int          // number of servers that responded with a failure
	servfails      int          // number of servers whose first response was SERVFAIL
	response       *wire.Answer // see Exchange.FirstFailure; nil: none
	responseServer *Server      // server of response
	primaryServer  *Server      // server that caused the error of the primary
	hasRefused     bool         // a server has refused a connection
}

// record stores a failure of the server from: a failure response or, if response is nil, an error. It returns the
// number of earlier failure responses of that server.
func (f *failures) record(use *serverUse, from *Server, response *wire.Answer, err error) (earlier int) {
	isResponse := response != nil || transport.IsTruncationError(err)
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
	if f.response == nil || from.IsDeliberateFailure(response) && !f.responseServer.IsDeliberateFailure(f.response) {
		f.response, f.responseServer = response, from
	}
	return earlier
}
