package validate_test

import (
	"sync"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// TestValidationIsSafeForConcurrentUse has hedges judge the same records with the same Work. The race detector looks on.
func TestValidationIsSafeForConcurrentUse(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	rrs := records(t, "a.example. 300 IN MX 1 b.example.", "a.example. 300 IN MX 2 c.example.")
	data := set(t, rrs, s)
	keys, ds := dnskeys(t, s), validate.UnverifiedDS(validate.NewRRset([]dns.RR{s.ds(t, dns.SHA256)}))
	denials := nsec3Zone{"1 0 5 -", map[string]string{"example.": "NS SOA"}}.sign(t, s)
	w := new(validate.Validation)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := w.Verify(data, k, now)
			assert.NoError(t, err)
			_, _, err = w.VerifyDNSKEY(ds, keys, now)
			assert.NoError(t, err)
			_, err = w.VerifyDenial("m.example.", dns.TypeA, denials, k, now)
			assert.NoError(t, err)
			_, _, ok := validate.NewRRset(rrs, data.Sigs...).Canonical() // the records are those of others, too
			assert.True(t, ok)
		})
	}
	all.Wait()
	spent, failures, _ := w.SpentWork()
	assert.LessOrEqual(t, spent, 24)
	assert.Zero(t, failures)
}
