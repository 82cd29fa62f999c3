package recursor

import (
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// readTrust returns the configuration of a validator for Resolver.Trust and the limits l. The error names an invalid
// trust anchor.
func readTrust(t dnssec.Trust, l Limits) (conf chain.Config, err error) {
	if err := conf.ReadTrust("recursor: Resolver.Trust", t.Anchors, t.Insecure); err != nil {
		return conf, err
	}
	conf.Policy = validate.Policy{AllowSHA1: t.AllowSHA1, Verifications: l.Verifications, NSEC3Iterations: l.NSEC3Iterations}
	if adjustPolicy != nil {
		adjustPolicy(&conf.Policy)
	}
	return conf, nil
}

// disableAggressiveUse disables synthesized answers (RFC 8198). It is false except in tests.
var disableAggressiveUse bool

// adjustPolicy changes the validation policy of new Resolvers. It is nil except in tests.
var adjustPolicy func(*validate.Policy)
