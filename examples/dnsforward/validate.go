package main

import (
	"log/slog"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// validatingClient is what stands below a client that checks the signatures of what its upstreams say.
type validatingClient struct {
	*dnssec.Validator
	upstreams *dnshedge.Client // that the Validator asks
}

// validator has c's upstreams be asked by a Validator, after flags were parsed. It is nil without -validate.
func (r *recursiveFlags) newValidatingClient(c *dnshedge.Client) *validatingClient {
	if !r.validate {
		return nil
	}
	inner := &dnshedge.Client{
		Upstreams: c.Upstreams, Fallback: c.Fallback, Hedge: c.Hedge, Timeout: c.Timeout, Dialer: c.Dialer, ResolvConf: c.ResolvConf,
		SpecialUse: dnshedge.SpecialUseOff, // c answers those names
	}
	v := &validatingClient{&dnssec.Validator{Exchanger: inner, Trust: r.trust, Name: "validator", Logger: slog.Default()}, inner}
	c.Upstreams, c.Fallback, c.Exchanger = nil, nil, v.Validator
	return v
}

// close ends both.
func (v *validatingClient) closeBoth() {
	v.Validator.Close()
	v.upstreams.Close()
}

// upstreamClient returns the client that asks upstreams.
func (f *forwarder) upstreamClient() *dnshedge.Client {
	if f.validating != nil {
		return f.validating.upstreams
	}
	return f.client
}
