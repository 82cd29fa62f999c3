package recursor

import (
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// readTrust converts Resolver.Trust and the limits into the configuration of a validator.
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

// disableAggressiveUse turns off synthesized answers, in tests.
var disableAggressiveUse bool

// adjustPolicy changes the policy of Resolvers, in tests. It may be nil.
var adjustPolicy func(*validate.Policy)
