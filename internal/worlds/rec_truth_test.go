package worlds_test

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// A recCorrectAnswer is the correct answer to a question, which follows from the construction of the zones.
type recCorrectAnswer struct {
	rcode    int
	records  []string // in order; without signatures
	security recSecurity
	loops    bool // its aliases lead nowhere
	needs    []*recZone
	links    int
	optedOut []*recZone // zones that have a name of the answer in a span with opt-out, see isOptedOut
}

// A recSecurity is the correct result of DNSSEC validation. A higher value is worse.
type recSecurity int

const (
	isSecure recSecurity = iota
	isInsecure
	isBogus
)

func (s recSecurity) String() string { return [...]string{"secure", "insecure", "bogus"}[s] }

// correctAnswerOf returns the correct answer to the question for a name and a type.
func (d *recData) correctAnswerOf(name string, typ uint16) (t recCorrectAnswer) {
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
		t.addNeeded(d.w, z)
		f := d.findName(z, name, typ)
		s := d.w.recordSecurity(z, name, typ, f)
		t.security = max(t.security, s)
		if d.w.isOptedOut(z, name, typ, f) {
			t.optedOut = append(t.optedOut, z)
		}
		rrs = append(rrs, f.rrs...)
		if f.none {
			t.rcode = dns.RcodeNameError
		}
		if f.next == "" {
			t.records = formatRecords(rrs)
			return t
		}
		if s == isBogus { // no further zone is queried
			t.records = formatRecords(rrs)
		}
		name = f.next
	}
}

// formatRecords returns records as text, without signatures, TTLs and the case of their owners.
func formatRecords(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		if h := rr.Header(); h.Rrtype != dns.TypeRRSIG {
			all = append(all, strings.ToLower(h.Name)+" "+dns.TypeToString[h.Rrtype]+" "+strings.TrimPrefix(rr.String(), h.String()))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// addNeeded adds a zone whose servers must be queried for the answer, and all zones on the path to that zone.
func (t *recCorrectAnswer) addNeeded(w *recScenario, z *recZone) {
	if slices.Contains(t.needs, z) {
		return
	}
	t.needs = append(t.needs, z)
	if z.parent != nil {
		t.addNeeded(w, z.parent)
	}
	if w.hasForeignServers(z) {
		t.addNeeded(w, w.zones[recHosts])
	}
}

// zoneOf returns the zone that answers questions for a name. For DS records it is the parent zone.
func (w *recScenario) zoneOf(name string, typ uint16) (best *recZone) {
	for _, z := range w.zones {
		if z.contains(name) && (best == nil || len(z.name) > len(best.name)) && (typ != dns.TypeDS || z.name != name || z.parent == nil) {
			best = z
		}
	}
	return best
}

// isAnchored reports whether the zone is the start of a chain of trust, that is, has a trust anchor.
func (w *recScenario) isAnchored(z *recZone) bool {
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

// isCovered reports whether the name is at or below a trust anchor.
func (w *recScenario) isCovered(name string, typ uint16) bool {
	if typ == dns.TypeDS && name != "." {
		name = parentName(name)
	}
	insecure, anchor := "", ""
	if i := w.client.insecure; i >= 0 && w.zones[i].contains(name) {
		insecure = w.zones[i].name
	}
	for _, z := range w.zones {
		if w.isAnchored(z) && z.contains(name) {
			anchor = z.name
		}
	}
	return anchor != "" && (insecure == "" || len(anchor) > len(insecure))
}

// zoneSecurity returns the result of the validation of a zone.
func (w *recScenario) zoneSecurity(z *recZone) recSecurity {
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

// isOptedOut reports whether an NSEC3 record with opt-out covers a name, which a wildcard may match. The name may then be
// that of a delegation that is not signed, so that data about it need no signatures (RFC 5155 §12.2).
func (w *recScenario) isOptedOut(z *recZone, name string, typ uint16, f recLookupResult) bool {
	return z.denial == "optout" && z.flaw != "noProof" && (f.none || f.wild) && w.isCovered(name, typ) && w.zoneSecurity(z) == isSecure
}

// recordSecurity returns the result of the validation of a name in a zone.
func (w *recScenario) recordSecurity(z *recZone, name string, typ uint16, f recLookupResult) recSecurity {
	if !w.isCovered(name, typ) {
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
		if z.flaw == "tampered" && (t == dns.TypeA || t == dns.TypeAAAA || t == dns.TypeTXT) || z.flaw == "noSig" && z.signatureForm(t, "") == "none" {
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
