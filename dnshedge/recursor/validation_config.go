package recursor

import (
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// readTrust reads Resolver.Trust, for a Resolver with these limits.
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

// disableAggressiveUse has Resolvers ask servers what they could tell by proofs of other answers, for tests.
var disableAggressiveUse bool

// adjustPolicy changes the policy of Resolvers, for tests; nil: nothing does.
var adjustPolicy func(*validate.Policy)
