package main

import (
	"log/slog"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// A validatingClient is a DNSSEC Validator together with the Client that the Validator asks. With the flag -validate,
// the forwarder's client asks the Validator.
type validatingClient struct {
	*dnssec.Validator
	upstreams *dnshedge.Client // asked by the Validator
}

// newValidatingClient makes c validate answers, for the flag -validate. It moves the upstreams of c to a new Client,
// and creates a Validator that asks that Client. The Validator becomes the Exchanger of c.
//
// It must be called after the flags were parsed. It returns nil without the flag -validate.
func (r *recursiveFlags) newValidatingClient(c *dnshedge.Client) *validatingClient {
	if !r.validate {
		return nil
	}
	inner := &dnshedge.Client{
		Upstreams: c.Upstreams, Fallback: c.Fallback, Hedge: c.Hedge, Timeout: c.Timeout, Dialer: c.Dialer, ResolvConf: c.ResolvConf,
		SpecialUse: dnshedge.SpecialUseOff, // c answers special-use names
	}
	v := &validatingClient{&dnssec.Validator{Exchanger: inner, Trust: r.trust, Name: "validator", Logger: slog.Default()}, inner}
	c.Upstreams, c.Fallback, c.Exchanger = nil, nil, v.Validator
	return v
}

// closeBoth closes the Validator and its Client.
func (v *validatingClient) closeBoth() {
	v.Validator.Close()
	v.upstreams.Close()
}

// upstreamClient returns the Client whose upstreams are asked, for its statistics. With -validate that is not the
// Client that answers the forwarder's clients.
func (f *forwarder) upstreamClient() *dnshedge.Client {
	if f.validating != nil {
		return f.validating.upstreams
	}
	return f.client
}
