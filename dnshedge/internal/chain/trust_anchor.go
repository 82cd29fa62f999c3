package chain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A trustAnchor is the trust anchor of a zone, or a negative trust anchor (RFC 7646), which disables validation for the
// zone.
type trustAnchor struct {
	zone    string          // name, in lower case
	ds      *validate.DSSet // nil for a negative trust anchor
	builtIn bool            // this is the default trust anchor of the root, and was not configured
}

// trustAnchors maps the name of a zone, in lower case, to its trust anchor or negative trust anchor.
type trustAnchors map[string]*trustAnchor

// newTrustAnchors returns the trust anchors in trusted, and negative trust anchors for the names in insecure. If
// trusted is nil, the built-in trust anchor of the root is used. A zone in both has only the negative trust anchor.
func newTrustAnchors(trusted []*validate.DSSet, insecure []string) trustAnchors {
	all := make(trustAnchors)
	if trusted == nil {
		all["."] = &trustAnchor{zone: ".", ds: validate.RootTrustAnchors(), builtIn: true}
	}
	for _, ds := range trusted {
		name := dnsname.ToLower(ds.Zone())
		all[name] = &trustAnchor{zone: name, ds: ds}
	}
	for _, name := range insecure {
		all[name] = &trustAnchor{zone: name}
	}
	return all
}

// nearestAnchor returns the trust anchor or negative trust anchor of the name, or else of its nearest ancestor. It
// returns nil if there is none. The name must be in lower case.
func (a trustAnchors) nearestAnchor(name string) *trustAnchor {
	for ; name != "."; name = dnsname.Parent(name) {
		if anchor := a[name]; anchor != nil {
			return anchor
		}
	}
	return a["."]
}

// TrustFingerprint returns a string that identifies a configuration of trust anchors, negative trust anchors
// (insecure) and flags, so that stored results of another configuration can be discarded. The order of anchors and
// names does not matter.
func TrustFingerprint(anchors []dns.RR, insecure []string, flags ...bool) string {
	records := make([]string, 0, len(anchors))
	for _, rr := range anchors {
		if !usercode.IsNilRecord(rr) {
			own := dns.Copy(rr)
			own.Header().Name, own.Header().Ttl, own.Header().Rdlength = dns.CanonicalName(own.Header().Name), 0, 0
			records = append(records, own.String())
		}
	}
	names := make([]string, 0, len(insecure))
	for _, name := range insecure {
		names = append(names, dns.CanonicalName(name))
	}
	slices.Sort(records)
	slices.Sort(names)
	return fmt.Sprintf("%v %q %q %v", anchors == nil, slices.Compact(records), slices.Compact(names), flags)
}

// ReadTrust sets Anchors and Insecure from a user's DS and DNSKEY records and names. If records is nil, the built-in
// trust anchors of the root are used.
//
// The error names the invalid record or name. It begins with field, the name of the configuration in the user's code.
func (conf *Config) ReadTrust(field string, records []dns.RR, names []string) error {
	zones := make(map[string][]dns.RR)
	for i, rr := range records {
		if usercode.IsNilRecord(rr) {
			return fmt.Errorf("%s.Anchors has a nil record at index %d; want DS or DNSKEY", field, i)
		}
		name, ok := dnsname.CanonicalName(rr.Header().Name)
		if !ok {
			return fmt.Errorf("%s.Anchors has name %q; want a domain name", field, rr.Header().Name)
		}
		zones[name] = append(zones[name], rr)
	}
	if records != nil {
		conf.Anchors = []*validate.DSSet{}
	}
	for _, rrs := range zones {
		ds, err := validate.TrustAnchors(rrs...)
		if err != nil {
			return fmt.Errorf("%s.Anchors: %w", field, err)
		}
		conf.Anchors = append(conf.Anchors, ds)
	}
	for _, spelled := range names {
		name, ok := dnsname.CanonicalName(spelled)
		if !ok || spelled == "" {
			return fmt.Errorf("%s.Insecure has %q; want a domain name", field, spelled)
		}
		if strings.HasPrefix(name, "*.") {
			return fmt.Errorf("%s.Insecure has %q; want %q, which covers all names below it", field, spelled, name[2:])
		}
		conf.Insecure = append(conf.Insecure, name)
	}
	return nil
}
