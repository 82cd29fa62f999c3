package worlds_test

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// A recTruth is what is right to answer to a question, by construction.
type recTruth struct {
	rcode    int
	records  []string // in order; without signatures
	security recSecurity
	loops    bool // its aliases lead nowhere
	needs    []*recZone
	links    int
}

// A recSecurity is what a validator finds. More is worse.
type recSecurity int

const (
	isSecure recSecurity = iota
	isInsecure
	isBogus
)

func (s recSecurity) String() string { return [...]string{"secure", "insecure", "bogus"}[s] }

// truth returns what is right to answer.
func (d *recData) truth(name string, typ uint16) (t recTruth) {
	seen := make(map[string]bool)
	var rrs []dns.RR
	for {
		if seen[name] {
			t.loops = true
			return t
		}
		seen[name] = true
		t.links++
		z := d.w.zoneOf(name, typ)
		t.need(d.w, z)
		f := d.find(z, name, typ)
		s := d.w.security(z, name, typ, f)
		t.security = max(t.security, s)
		rrs = append(rrs, f.rrs...)
		if f.none {
			t.rcode = dns.RcodeNameError
		}
		if f.next == "" {
			t.records = recordsOf(rrs)
			return t
		}
		if s == isBogus { // nobody is asked for more
			t.records = recordsOf(rrs)
		}
		name = f.next
	}
}

// recordsOf writes records down, without signatures, TTLs and the case of their owners.
func recordsOf(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		if h := rr.Header(); h.Rrtype != dns.TypeRRSIG {
			all = append(all, strings.ToLower(h.Name)+" "+dns.TypeToString[h.Rrtype]+" "+strings.TrimPrefix(rr.String(), h.String()))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// need notes that a zone's servers are asked, and those of all zones on the way to them.
func (t *recTruth) need(w *recWorld, z *recZone) {
	if slices.Contains(t.needs, z) {
		return
	}
	t.needs = append(t.needs, z)
	if z.parent != nil {
		t.need(w, z.parent)
	}
	if w.outside(z) {
		t.need(w, w.zones[recHosts])
	}
}

// zoneOf returns the zone that answers for a name: of DS records, the one above.
func (w *recWorld) zoneOf(name string, typ uint16) (best *recZone) {
	for _, z := range w.zones {
		if z.holds(name) && (best == nil || len(z.name) > len(best.name)) && (typ != dns.TypeDS || z.name != name || z.parent == nil) {
			best = z
		}
	}
	return best
}

// isAnchored reports whether a chain of trust begins at a zone.
func (w *recWorld) isAnchored(z *recZone) bool {
	switch w.client.trust {
	case "none":
		return false
	case "zone":
		return z.number == recFirst
	case "both":
		return z.number == recFirst || z.parent == nil
	case "zones":
		return z.number == recFirst || z.number == 4
	case "sub":
		return z.number == 6
	}
	return z.parent == nil
}

// covers reports whether what is asked for is to be validated.
func (w *recWorld) covers(name string, typ uint16) bool {
	if typ == dns.TypeDS && name != "." {
		name = up(name)
	}
	insecure, anchor := "", ""
	if i := w.client.insecure; i >= 0 && w.zones[i].holds(name) {
		insecure = w.zones[i].name
	}
	for _, z := range w.zones {
		if w.isAnchored(z) && z.holds(name) {
			anchor = z.name
		}
	}
	return anchor != "" && (insecure == "" || len(anchor) > len(insecure))
}

// zoneSecurity returns what a validator finds of a zone.
func (w *recWorld) zoneSecurity(z *recZone) recSecurity {
	switch {
	case w.isAnchored(z):
	case z.parent == nil:
		return isInsecure
	default:
		if s := w.zoneSecurity(z.parent); s != isSecure {
			return s
		}
		if z.sign != "" {
			if z.flaw == "noDSProof" || z.parent.flaw == "noProof" {
				return isBogus
			}
			return isInsecure
		}
	}
	switch z.keys {
	case "sha1", "unknown", "digest":
		return isInsecure
	}
	switch z.flaw {
	case "", "tampered", "noSig", "noProof", "noDSProof":
		return isSecure
	}
	return isBogus
}

// security returns what a validator finds of what a zone has of a name.
func (w *recWorld) security(z *recZone, name string, typ uint16, f recFound) recSecurity {
	if !w.covers(name, typ) {
		return isInsecure
	}
	s := w.zoneSecurity(z)
	if typ == dns.TypeDNSKEY && name == z.name && slices.Contains([]string{"expiredData", "wrongKey", "forged"}, z.flaw) {
		sound := *z
		sound.flaw = ""
		s = w.zoneSecurity(&sound) // these are right
	}
	if s != isSecure {
		return s
	}
	if len(f.rrs) > 0 {
		t := f.rrs[0].Header().Rrtype
		if z.flaw == "tampered" && (t == dns.TypeA || t == dns.TypeAAAA || t == dns.TypeTXT) || z.flaw == "noSig" && z.form(t, "") == "none" {
			return isBogus
		}
		if !f.wild {
			return isSecure
		}
	}
	delegation := slices.ContainsFunc(z.children, func(c *recZone) bool { return c.name == name })
	switch {
	case z.flaw == "noProof" || delegation && slices.ContainsFunc(z.children, func(c *recZone) bool { return c.name == name && c.flaw == "noDSProof" }):
		return isBogus
	case z.denial == "iterations":
		return isInsecure
	case z.denial == "optout" && (f.none || f.wild || delegation): // RFC 5155 §9.2
		return isInsecure
	}
	return isSecure
}
