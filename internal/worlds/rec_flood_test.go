package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// judgeFloods counts queries against proofs: of names that a zone does not have, its servers see no more than its chain has records, and two (RFC 8198).
func (j *recJudge) judgeFloods() {
	judged := make(map[*recZone]bool) // zones that are judged already, or cannot be
	for _, a := range j.w.asks {
		if a.flood != nil && !j.proves(a) { // a question with CD asks the servers, and floods of one zone have equal names
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

// proves reports whether what denies the names of a flood is kept while the flood lasts.
func (j *recJudge) proves(a *recAsk) bool {
	w, z := j.w, a.flood
	steady := w.sound() && w.client.change == "" && w.client.maxBytes == 0 && w.client.trust != "off" && a.deadline == 0 && a.cancel < 0 && !a.cd
	lasting := slices.Contains([]string{"", "nsec3", "salt"}, z.denial) && (z.life == 0 || z.life > time.Hour) && z.soa != "short" && z.sigTTL == 0
	return steady && lasting && w.validator != "resolver" && j.p.data.truth(a.name, a.typ).security == isSecure
}
