package recursor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/rpl"
)

// setUpTrust configures the validation of a Resolver as a script requires: with only the script's anchors, not below
// its insecure names, and with settings for cryptography that is out of date. It is called inside the bubble at the
// date of the script. If AnyDate is set, the script has signatures of any time.
//
// The 19 scripts with NSEC3 of 123 iterations require that 150 are allowed.
//
// unbound validates a stub zone by its parent. Here the parent's DS records become an anchor of the stub zone, which
// is insecure without an anchor. With Trust.Report, names in a zone without keys have an answer.
func setUpTrust(r *recursor.Resolver, s *rpl.Script, t rpl.ValidatorSettings, name string) {
	r.Trust = dnssec.Trust{Anchors: append([]dns.RR{}, t.Anchors...), Insecure: t.Insecure, Report: t.Stripped}
	for zone := range r.Zones {
		r.Trust.Anchors = append(r.Trust.Anchors, s.DSRecords(zone)...)
	}
	r.Limits.NSEC3Iterations, r.Trust.AllowSHA1 = 150, true
	r.Trust.RequireAllAlgorithms = s.Get("harden-algo-downgrade") == "yes"
	if t.FakeSHA1 || !strings.Contains(name, "_val_minimal_") { // in which the digest type is the fault
		recursor.AcceptLegacyAlgorithms(r)
	}
}

// elsewhere is the reason for scripts in which unbound uses the alias from the answer to another question, which is
// no proof of RFC 8198.
const elsewhere = "the alias came with the answer to another question, of another type or name; here its zone is asked, and in the script no server answers"

// differsKnowing lists the steps that do not pass because they require data from the answers to other questions,
// with the reason.
var differsKnowing = map[string]differ{
	"unbound_iter_dname_ttl.rpl":       {elsewhere, []int{50}},
	"unbound_iter_dname_ttl0.rpl":      {elsewhere, []int{40}},
	"unbound_iter_scrub_dname_sec.rpl": {elsewhere, []int{230, 250}},
	"unbound_nsec_cross_zone.rpl":      {"a question with CD gets what there is; unbound scrubs an NSEC record that leads out of its zone. It is no proof here either", []int{10}},
	"unbound_val_cnameother.rpl":       {"where a name has an alias and an address beside it, the alias is taken", []int{10}},
	"unbound_val_cnameqtype.rpl":       {elsewhere, []int{50, 90, 130, 150, 170, 190, 210}},
	"unbound_val_cnameqtype_qmin.rpl":  {elsewhere, []int{50, 90, 130, 150, 170, 190, 210}},
	"unbound_val_cnametonsec.rpl":      {"the proof that the zone of the target is insecure came with the alias; here it is asked for, and in the script no server answers", []int{10}},
	"unbound_val_cnametooptin.rpl":     {"as cnametonsec", []int{10}},
	"unbound_val_dnameqtype_qmin.rpl":  {elsewhere, []int{90, 170, 210}},
}

// differsValidating lists the steps of other validator scripts that do not pass, with the reason. It may have twelve
// scripts. In none does the Resolver accept data that a validator must reject.
var differsValidating = map[string]differ{
	"deckard_val_anchor_nx_nosig.rpl":                                  {"the zone of an anchor has no keys: here its names are bogus, for unbound they are insecure", []int{10}},
	"deckard_val_dname_bogus.rpl":                                      {"beside a signed DNAME record is a CNAME record that is forged: here it is never read, and ours is made of the DNAME record (RFC 6672 §5.3.1), so that the answer is right; Knot Resolver says SERVFAIL", []int{221102, 900202}},
	"deckard_val_iter_high.rpl":                                        {"what has more than 500 iterations is not looked at, and SERVFAIL; Knot Resolver takes it for insecure", []int{22, 32}},
	"unbound_black_prime_entry.rpl":                                    {"keys that were bogus are asked for again after 5 s, and no server answers any more; unbound keeps them for longer", []int{120, 122}},
	"unbound_serve_expired_client_timeout_val_bogus.rpl":               {"unbound answers with what has expired where the new answer is bogus; here that is SERVFAIL", []int{30, 50}},
	"unbound_serve_expired_client_timeout_val_insecure_delegation.rpl": {"unbound answers with what has expired, as a server does not answer; here another is asked in time", []int{40}},
	"unbound_serve_expired_val_bogus.rpl":                              {"as client_timeout_val_bogus", []int{30, 50, 70, 90}},
	"unbound_serve_expired_wildcard_swap_ad.rpl":                       {"an answer that has expired has no AD here", []int{60}},
	"unbound_val_anchor_nx_nosig.rpl":                                  {"as deckard's", []int{10}},
	"unbound_val_ta_algo_missing.rpl":                                  {"EDE 9, as no key has the algorithm of the second anchor; unbound says 6", []int{10, 12}},
	"unbound_val_ds_cname.rpl":                                         {"EDE 10, as there are no signatures; unbound says 6", []int{10, 12}},
	"unbound_val_failure_dnskey.rpl":                                   {"EDE 22, as no server has answered a question for DS with more than SERVFAIL; unbound says 23", []int{30}},
}

// differsWithoutSetting lists the steps that do not pass because a Resolver lacks a setting of unbound or does what the
// script is against on purpose, with the reason.
var differsWithoutSetting = map[string]differ{
	"unbound_disable_edns_do.rpl":      {"no setting removes the DO bit from the queries of a Resolver without validation; the client has asked with DO", []int{10}},
	"unbound_ghost_glue_a.rpl":         {"an answer never extends a delegation here, so its TTL need not be that of the delegation", []int{13}},
	"unbound_iter_class_any_merge.rpl": {"only class IN is resolved; unbound adds the answer of class CH to a question of class ANY", []int{10}},
	"unbound_iter_stubfirst.rpl":       {"no setting resolves a name from the root when the servers of a stub zone fail", []int{10}},
	"unbound_long_qname.rpl":           {"the query cannot be parsed, and a dns.Server answers FORMERR before a Client gets it; the script has no dns.Server", []int{20}},
	"unbound_refuse_xfr.rpl":           {"IXFR is REFUSED like AXFR; unbound says FORMERR because of the SOA record", []int{4}},
	"unbound_serve_original_ttl.rpl":   {"no setting keeps the original TTL", []int{30, 50}},
}

// TestUnboundValidatorScripts runs the scripts of unbound and deckard for validating resolvers, in the folders of the
// list RPL_VAL_DIR, and logs which pass. AD must be as in the scripts. All scripts must be readable and run to their end.
func TestUnboundValidatorScripts(t *testing.T) {
	files, err := rpl.Files(os.Getenv("RPL_VAL_DIR"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("RPL_VAL_DIR names no folder of scripts")
	}
	require.LessOrEqual(t, len(differsValidating), 12)
	t.Setenv("GODEBUG", "rsa1024min=0")
	passed, played := 0, 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s := parse(t, file)
			if slices.ContainsFunc(s.Zones(), func(z *rpl.Zone) bool { return !z.Stub }) {
				return // packages dnshedge and dnssec run the scripts for forwarders
			}
			played++
			var err error
			recursor.WithoutSpecialNames(func() { err = playValidator(t, s) })
			if err == nil {
				passed++
			}
			name := filepath.Base(file)
			want := slices.Concat(differsKnowing[name].steps, differsValidating[name].steps, differsWithoutSetting[name].steps)
			assert.Equal(t, want, rpl.FailedSteps(err), "%v", err)
		})
	}
	assert.NotZero(t, played)
	t.Logf("%d of %d pass", passed, played)
}

// playValidator runs a script with a Resolver that validates as the script requires.
func playValidator(t *testing.T, s *rpl.Script) error {
	t.Helper()
	trust, err := s.ValidatorSettings()
	require.NoError(t, err)
	if ttl, _ := strconv.Atoi(s.Get("serve-expired-reply-ttl")); ttl > 0 {
		s.ReplaceExpectedTTL(uint32(ttl), 30)
	}
	s.SetRecursionDesired()
	s.ClearExpectedTC()
	return playResolver(t, s, func(r *recursor.Resolver, c *dnshedge.Cache) {
		if trust.AnyDate {
			trust.Date = time.Date(2012, 11, 20, 0, 0, 0, 0, time.UTC) // when the signatures of the two scripts are valid
		}
		trust.SleepUntilDate()
		setUpTrust(r, s, trust, t.Name())
		if s.Get("serve-expired") != "yes" {
			return
		}
		c.MaxStale, c.StaleAfter = 0, -1
		if ms, _ := strconv.Atoi(s.Get("serve-expired-client-timeout")); ms > 0 {
			c.StaleAfter = time.Duration(ms) * time.Millisecond
		}
	})
}
