package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// judgeFloods counts queries against proofs: of names that a zone does not have, its servers see no more than its chain has records, and two (RFC 8198).
func (j *recJudge) judgeFloods() {
	counted := make(map[string]bool)
	for _, a := range j.w.asks {
		if a.flood == nil || counted[a.what] {
			continue
		}
		counted[a.what] = true
		if !j.proves(a) {
			continue
		}
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
