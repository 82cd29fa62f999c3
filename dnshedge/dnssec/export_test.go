package dnssec

import "github.com/gohedge/hedge/dnshedge/internal/validate"

// PanicInSetup has the first use of a Validator panic.
func PanicInSetup(v *Validator) {
	adjustPolicy = func(*validate.Policy) { panic("in setup") }
	defer func() {
		adjustPolicy = nil
		_ = recover()
	}()
	_, _ = v.initOnce()
}

// ForScripts has a Validator play scripts of others: signatures of algorithms that no library verifies any more are right once all else fits, and NSEC3 records
// may have 150 iterations.
func ForScripts(v *Validator) {
	adjustPolicy = func(p *validate.Policy) { p.FakeLegacy, p.NSEC3Iterations = true, 150 }
	defer func() { adjustPolicy = nil }()
	if _, err := v.initOnce(); err != nil {
		panic(err)
	}
}
