package rpl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// ValidatorSettings are the DNSSEC settings of a script. The zero value stands for a script without DNSSEC settings.
type ValidatorSettings struct {
	Anchors  []dns.RR  // trust anchors: DS and DNSKEY records
	Insecure []string  // zones that are not validated, including their subdomains
	Date     time.Time // date at which the script must run; zero means any date
	AnyDate  bool      // validity periods of signatures are not checked
	FakeSHA1 bool      // SHA-1 signatures and DS digests are not verified; they count as valid if everything else is valid
	Stripped bool      // responses without the required signatures or keys count as insecure instead of bogus
}

// ValidatorSettings returns the DNSSEC settings of the script. It returns an error if a trust anchor or a date is
// invalid.
func (s *Script) ValidatorSettings() (t ValidatorSettings, err error) {
	for _, c := range s.Settings {
		switch c.Key {
		case "trust-anchor":
			rr, err := dns.NewRR(c.Value)
			if err != nil || rr == nil {
				return t, fmt.Errorf("rpl: trust-anchor %q: %w", c.Value, err)
			}
			t.Anchors = append(t.Anchors, rr)
		case "domain-insecure":
			t.Insecure = append(t.Insecure, dns.Fqdn(c.Value))
		case "fake-sha1":
			t.FakeSHA1 = c.Value == "yes"
		case "harden-dnssec-stripped":
			t.Stripped = c.Value == "no"
		case "val-override-date", "val-override-timestamp":
			if t.AnyDate = c.Value == "-1"; t.AnyDate {
				continue
			}
			if t.Date, err = parseDate(c.Value); err != nil {
				return t, fmt.Errorf("rpl: %s: %w", c.Key, err)
			}
		}
	}
	return t, nil
}

// DSRecords returns all DS records of a zone that occur in responses of the script's servers, without duplicates.
func (s *Script) DSRecords(zone string) (all []dns.RR) {
	for _, r := range s.ranges {
		for _, e := range r.entries {
			for _, rr := range slices.Concat(e.msg.Answer, e.msg.Ns) {
				if rr.Header().Rrtype == dns.TypeDS && strings.EqualFold(rr.Header().Name, zone) {
					all = append(all, rr)
				}
			}
		}
	}
	return dns.Dedup(all, nil)
}

// parseDate parses a date of the form YYYYMMDDHHMMSS in UTC, or a number of seconds since 1970.
func parseDate(text string) (time.Time, error) {
	const digits = "20060102150405"
	if len(text) == len(digits) {
		return time.Parse(digits, text)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

// SleepUntilDate sleeps until t.Date. It must be called in a testing/synctest bubble, in which the fake time begins in
// 2000 and the sleep takes no real time. It does nothing if t.Date is zero.
func (t ValidatorSettings) SleepUntilDate() {
	if !t.Date.IsZero() {
		time.Sleep(time.Until(t.Date))
	}
}
