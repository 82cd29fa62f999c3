package resolvers

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// differ are the questions to which our answer is neither peer's, and why.
var differ = map[string]string{
	"www.chaos. A":       "unbound takes the class of a record for that of the question; a record of class CH is no answer to one of class IN",
	"www.sideways. A":    "a referral to the zone itself says nothing: BIND fails, too, where unbound says that there is nothing",
	"nx.sideways. A":     "as www.sideways.",
	"www.ednsbadvers. A": "unbound takes BADVERS, whose lower bits are NOERROR, for an answer without records, and BIND gives up; we ask without EDNS",
}

// answered is what the resolvers made of a question.
type answered struct {
	ask
	peers []outcome
	ours  outcome
}

// TestMisbehavingZonesAreResolvedAsByUnboundAndBIND: no question about them that unbound or BIND answers fails
// here, and the answers are the same.
func TestMisbehavingZonesAreResolvedAsByUnboundAndBIND(t *testing.T) {
	l := newLab(t)
	addTroubles(l)
	l.open(t)
	peers, ours := startAll(t, l)
	all := askAll(t, peers, ours)

	var table strings.Builder
	used := make(map[string]bool)
	for _, a := range all {
		why := a.wrong()
		mark := ""
		switch reason := differ[a.String()]; {
		case reason != "" && (why != "" || !slices.ContainsFunc(a.peers, outcome.answered)): // there may be nothing to compare with
			used[a.String()] = true
			mark = " *"
		case why != "":
			mark = " WRONG"
			t.Errorf("%s: %s\n  unbound: %v\n  BIND:    %v\n  ours:    %v", a, why, a.peers[0], a.peers[1], a.ours)
		}
		fmt.Fprintf(&table, "\n%-26s", a.String())
		for _, o := range append(slices.Clone(a.peers), a.ours) {
			fmt.Fprintf(&table, " | %4d ms %-44.44s", o.took.Milliseconds(), strings.ReplaceAll(o.String(), a.name, "="))
		}
		table.WriteString(mark)
	}
	t.Logf("unbound | BIND | ours; = is the name of the question%s", table.String())
	for question, reason := range differ {
		assert.True(t, used[question], "%s is answered as by the peers, and needs no reason any more: %s", question, reason)
	}
}

// askAll asks all resolvers all questions. Scripts are played at the same time.
func askAll(t *testing.T, peers []*resolver, ours *resolver) (all []answered) {
	t.Helper()
	scripts := scripts()
	played := make([][]answered, len(scripts))
	room := make(chan struct{}, 12) // scripts at a time, so that the machine is not what is measured
	var wg sync.WaitGroup
	for i, script := range scripts {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			for _, a := range script {
				one := answered{ask: a, peers: make([]outcome, len(peers))}
				var each sync.WaitGroup
				for j, p := range peers {
					each.Go(func() { one.peers[j] = p.ask(t.Context(), a) })
				}
				one.ours = ours.ask(t.Context(), a)
				each.Wait()
				played[i] = append(played[i], one)
			}
		})
	}
	wg.Wait()
	return slices.Concat(played...)
}

// most is how long a question takes at most here, and nearly that.
const most = 4400 * time.Millisecond

// wrong says what is wrong with our answer; "" is nothing. Where the peers do not agree, ours is that of one of them.
func (a answered) wrong() string {
	var theirs []string
	fastest := patience
	for _, p := range a.peers {
		if p.answered() {
			theirs = append(theirs, p.String())
			fastest = min(fastest, p.took)
		}
	}
	switch {
	case len(theirs) == 0:
		return ""
	case !a.ours.answered() && a.ours.took > most && fastest > most:
		return "" // the machine was too busy for anybody to answer in that time
	case !a.ours.answered():
		return "fails"
	case !slices.Contains(theirs, a.ours.String()):
		return "another answer"
	}
	return ""
}
