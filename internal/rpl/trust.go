package rpl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Trust is what the settings of a script say of a validator. The zero value says nothing.
type Trust struct {
	Anchors  []dns.RR  // DS and DNSKEY records of trusted zones, and no others
	Insecure []string  // zones that are not validated, from there down
	Date     time.Time // when the script plays; zero: at any time
	AnyDate  bool      // signatures are valid at any time
	FakeSHA1 bool      // signatures with SHA-1 and DS records with its digest are taken as right, once all else fits
	Stripped bool      // what has no signatures, or no keys, is insecure
}

// Trust returns the settings of a validator.
func (s *Script) Trust() (t Trust, err error) {
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
			if t.Date, err = date(c.Value); err != nil {
				return t, fmt.Errorf("rpl: %s: %w", c.Key, err)
			}
		}
	}
	return t, nil
}

// DS returns the DS records of a zone that a server of the script has.
func (s *Script) DS(zone string) (all []dns.RR) {
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

// date reads YYYYMMDDHHMMSS, in UTC, or else seconds since 1970.
func date(text string) (time.Time, error) {
	const digits = "20060102150405"
	if len(text) == len(digits) {
		return time.Parse(digits, text)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

// Wait lets a synctest bubble, whose time begins in 2000, come to the date of the script.
func (t Trust) Wait() {
	if !t.Date.IsZero() {
		time.Sleep(time.Until(t.Date))
	}
}
