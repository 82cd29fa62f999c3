package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// checkFloods checks that random names in a zone cause at most two queries more than its chain has records (RFC 8198).
func (j *recChecker) checkFloods() {
	judged := make(map[*recZone]bool) // zones that are judged already, or cannot be
	for _, a := range j.w.asks {
		if a.flood != nil && !j.keepsProofs(a) { // a question with CD asks the servers, and floods of one zone have equal names
			judged[a.flood] = true
		}
	}
	for _, a := range j.w.asks {
		if a.flood == nil || judged[a.flood] {
			continue
		}
		judged[a.flood] = true
		names := make(map[string]bool)
		for _, q := range j.p.seen {
			if strings.HasSuffix(q.name, "flood."+a.flood.name) {
				names[q.name] = true
			}
		}
		if chain := j.p.data.keys[a.flood].chain.Len(); len(names) > chain+2 {
			j.findings = append(j.findings, finding{"8 proofs", fmt.Sprintf("%d names of %s are asked for, and the chain has %d records", len(names), a.flood.name, chain)})
		}
	}
}

// keepsProofs reports whether the Resolver caches the denials of a flood for the time of the flood.
func (j *recChecker) keepsProofs(a *recQuestion) bool {
	w, z := j.w, a.flood
	steady := w.isFlawless() && w.client.change == "" && w.client.maxBytes == 0 && w.client.trust != "off" && a.deadline == 0 && a.cancel < 0 && !a.cd
	lasting := slices.Contains([]string{"", "nsec3", "salt"}, z.denial) && (z.life == 0 || z.life > time.Hour) && z.soa != "short" && z.sigTTL == 0
	return steady && lasting && w.validator != "resolver" && j.p.data.correctAnswerOf(a.name, a.typ).security == isSecure
}
