package resolvers

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

// A run of five minutes with other versions of unbound and BIND, and the tree of one seed:
//
//	go test ./resolvers -run RandomTrees -v -trees.time 5m -trees.first 1000 -peers /srv/peers
//	go test ./resolvers -run RandomTrees -v -trees.count 1 -trees.first 1234
var (
	firstTree = flag.Uint64("trees.first", 1, "`seed` of the first random tree")
	treeCount = flag.Uint64("trees.count", 24, "number of random trees; the zones and answers of a single one are printed")
	treeTime  = flag.Duration("trees.time", 0, "how long random trees are compared, in place of trees.count")
)

// treesAtOnce is the number of trees that share a root and resolvers.
const treesAtOnce = 48

// rootOf returns the seed of the root of a tree.
func rootOf(seed uint64) uint64 { return seed / treesAtOnce }

// A judgement is the result of one question at one resolver.
type judgement struct {
	kind string // secure, insecure, bogus (there is an answer with CD), fails, or silent
	data string // rcode and records without signatures, if it is secure or insecure
}

// trust is higher if a client trusts the data more.
func (j judgement) trust() int {
	return max(0, slices.Index([]string{"", "insecure", "secure"}, j.kind))
}

// summary is the kind, the rcode and the number of records.
func (j judgement) summary() string {
	rcode, records, found := strings.Cut(j.data, " ")
	if n := strings.Count(records, ", "); found {
		return fmt.Sprintf("%s %s/%d", j.kind, rcode, n+1)
	}
	return strings.TrimSpace(j.kind + " " + rcode)
}

// A treeAnswer is what unbound, BIND and our resolver find of a question.
type treeAnswer struct {
	treeQuestion
	seed   uint64
	faults string
	root   string // the fault of the root
	found  [3]judgement
}

// difference says who differs; "" means nobody.
func (a treeAnswer) difference() string {
	unbound, named, ours := a.found[0], a.found[1], a.found[2]
	switch lower, higher := min(unbound.trust(), named.trust()), max(unbound.trust(), named.trust()); {
	case ours == unbound && ours == named:
		return ""
	case (unbound.kind == "silent" || named.kind == "silent") && (ours.kind != "insecure" || a.zone.isInsecure()):
		return "silence"
	case ours.kind == "secure" && !slices.ContainsFunc(a.found[:2], func(j judgement) bool { return j.kind == "bogus" || j.kind == "insecure" }):
		return "we reach more"
	case ours.trust() > higher:
		return "we trust more"
	case ours.trust() < lower:
		return "we trust less"
	case unbound.trust() > lower:
		return "unbound trusts more"
	case named.trust() > lower:
		return "BIND trusts more"
	case ours == unbound:
		return "BIND differs"
	case ours == named:
		return "unbound differs"
	}
	return "we differ"
}

// group is the key by which differences are counted.
func (a treeAnswer) group() string {
	text := fmt.Sprintf("%-20s | %-55s | root %-40s | %-12s", a.difference(), a.faults, a.root, a.kind)
	for _, j := range a.found {
		text += " | " + j.summary()
	}
	return text
}

// Other differences are expected, and make no error, because unbound or BIND agrees with us, or because we trust less:
//
//   - The servers of a zone do not answer questions for DS, and their referrals have the proof: insecure, and SERVFAIL for BIND (RFC 4035 §5.2).
//   - The name of a server is an alias, against RFC 2181 §10.3, or it is bogus: BIND does not use it.
//   - There are two unsigned CNAME records, against RFC 2181 §10.1: the first is used. BIND says SERVFAIL.
//   - A denial has no SOA record (RFC 2308 §2.2), or an answer has only records of other names: BIND says SERVFAIL.
//   - Eight invalid signatures precede the valid one: BIND says SERVFAIL. We verify 16.
//   - NSEC3 with 51 to 150 iterations is insecure for BIND. With more than 500, it is insecure for both, and SERVFAIL here (RFC 9276 §3.2).
//   - A signed zone has a server without EDNS, and the question has CD: SERVFAIL here, as that server cannot send signatures.
//   - A server of a zone says something else than another one, and nothing is signed.
//   - The servers of a zone answer questions for DS wrongly, or not at all: SERVFAIL here, where unbound and BIND have the records of a
//     referral. An answer has a higher rank than a referral (RFC 2181 §5.4.1).
//   - A DNAME record is known, and the names below it are denied without proof: unbound and BIND make the alias themselves, as they may
//     (RFC 6672 §3.4). We ask the servers.
//   - A denial has the SOA record of the zone above (RFC 2308 §3), and another server is silent: we wait two seconds for that one, so that
//     the answer comes too late for this test.
//   - No server of a zone answers for two names: SERVFAIL here for the next five seconds (RFC 9520 §3.2), where unbound and BIND have the
//     record of another name as the target of an alias.
//   - A denial was secure, and the same records prove the next one: secure here (RFC 8198), as no question is sent. Alone, it is not.
//   - Flaws of validatorsDiffer.

// treesDiffer are the faults for which we trust more than unbound and BIND, and why.
var treesDiffer = []struct{ fault, why string }{
	{"NXDOMAIN", "the response code has no signature, and follows the proof (RFC 4035 §5.4); unbound does the same for NSEC only"},
	{"lame: ", "below a zone that is proven to be unsigned nothing needs a proof (RFC 4035 §4.3), though no server of that zone answers"},
	{"delegates to itself", "the same"},
	{"refers to another zone", "the same"},
	{"TC without TCP", "the same"},
	{"AD, CD and RA are set", "a recursive server with the NS records of the zone says that there are no records"},
	{"denial of the zone above is replayed", "a span with opt-out covers the unsigned zone, and so the DS records below it (RFC 5155 §8.6), as for BIND"},
	{"signer is the root", "below an unsigned zone signatures are of no account, as for BIND"},
	{"private algorithm", "the zone is insecure (RFC 4035 §5.2); see validatorsDiffer for BIND, and unbound looks for the keys of a wrong signer"},
}

// isExplained reports whether treesDiffer has the reason of a difference. It has none for secure answers but those that follow the proof.
func (a treeAnswer) isExplained() bool {
	isInsecure := a.zone.isInsecure() || a.leadsToOther() && a.zone.other.isInsecure()
	return slices.ContainsFunc(treesDiffer, func(d struct{ fault, why string }) bool {
		return strings.Contains(a.faults, d.fault) && (a.found[2].kind == "insecure" && isInsecure || d.fault == "NXDOMAIN")
	})
}

// isInsecure reports whether the zone has no keys that are known, or is below a zone without.
func (z *treeZone) isInsecure() bool {
	return slices.ContainsFunc(append(slices.Clone(z.needs), z), func(above *treeZone) bool {
		return dns.IsSubDomain(above.name, z.name) && (above.unsigned || above.algorithm == dns.PRIVATEDNS)
	})
}

// askTrees asks all questions about the trees of some seeds, or the one that is given. It skips the test if a resolver is missing.
func askTrees(t *testing.T, seeds []uint64, only string) (all []treeAnswer) {
	l := newLab(t)
	root := newRoot(l, rootOf(seeds[0]))
	var trees []*tree
	for _, seed := range seeds {
		trees = append(trees, newTree(l, root, seed))
	}
	l.open(t)
	resolvers := validators(t, l, root.ds()[0].(*dns.DS))
	answers := make([][]treeAnswer, len(trees))
	room := make(chan struct{}, 48) // trees at a time, so that the machine is not what is compared
	var wg sync.WaitGroup
	for i, tree := range trees {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			answers[i] = tree.askQuestions(t, resolvers, only)
		})
	}
	wg.Wait()
	all = slices.Concat(answers...)
	if len(seeds) == 1 {
		t.Log("root: ", root.faults, trees[0])
		for _, a := range all {
			t.Log(a, a.found)
		}
	}
	return all
}

// askQuestions asks the questions about a tree one after the other, and the failed ones again with CD.
func (t *tree) askQuestions(tt *testing.T, resolvers []*resolver, only string) (all []treeAnswer) {
	each := func(f func(i int, r *resolver)) {
		var wg sync.WaitGroup
		for i, r := range resolvers {
			wg.Go(func() { f(i, r) })
		}
		wg.Wait()
	}
	for _, q := range t.drawQuestions() {
		if only != "" && (only != q.String() || len(all) > 0) {
			continue
		}
		a := treeAnswer{treeQuestion: q, seed: t.seed, faults: t.faultsOf(q), root: t.root.faults[0]}
		each(func(i int, r *resolver) { a.found[i] = judgeOutcome(r.ask(tt.Context(), q.ask)) })
		all = append(all, a)
	}
	for k := range all {
		a := &all[k]
		each(func(i int, r *resolver) {
			if again := a.ask; a.found[i].kind == "fails" {
				again.unchecked = true
				if judgeOutcome(r.ask(tt.Context(), again)).trust() > 0 {
					a.found[i].kind = "bogus"
				}
			}
		})
	}
	return all
}

func judgeOutcome(o outcome) judgement {
	switch {
	case o.err != nil:
		return judgement{kind: "silent"}
	case !o.answered():
		return judgement{kind: "fails"}
	}
	o.msg.Answer = without(o.msg.Answer, dns.TypeRRSIG)
	return judgement{o.security(), o.String()}
}

// TestRandomTreesAreTrustedAsByUnboundAndBIND: our resolver trusts no more than unbound and BIND do, but for treesDiffer. All differences
// are printed, except those that are not found again.
func TestRandomTreesAreTrustedAsByUnboundAndBIND(t *testing.T) {
	if testing.Short() {
		t.Skip("asks hundreds of questions")
	}
	groups, played, questions, silent, once := make(map[string][]treeAnswer), 0, 0, 0, 0
	seed, end, began := *firstTree, *firstTree+*treeCount, time.Now()
	for *treeTime == 0 && seed < end || time.Since(began) < *treeTime {
		var seeds, suspects []uint64
		for root := rootOf(seed); rootOf(seed) == root && (seed < end || *treeTime > 0); seed++ {
			seeds = append(seeds, seed)
		}
		var all []treeAnswer
		t.Run(fmt.Sprint("from ", seeds[0]), func(t *testing.T) { all = askTrees(t, seeds, "") })
		if len(all) == 0 {
			t.Skip("there is no network namespace, unbound or BIND")
		}
		played, questions = played+len(seeds), questions+len(all)
		found := make(map[string]string)
		for _, a := range all {
			switch a.difference() {
			case "":
			case "silence":
				silent++
			default:
				found[a.String()], suspects = a.group(), append(suspects, a.seed)
			}
		}
		if len(suspects) == 0 {
			continue
		}
		t.Run(fmt.Sprint("again from ", seeds[0]), func(t *testing.T) { all = askTrees(t, slices.Compact(suspects), "") })
		for _, a := range all {
			if group := a.group(); found[a.String()] == group {
				groups[group] = append(groups[group], a)
				delete(found, a.String())
			}
		}
		once += len(found)
	}
	table := ""
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		a := groups[group][0]
		table += fmt.Sprintf("\n%4d %6d %s", len(groups[group]), a.seed, group)
		if a.difference() != "we trust more" || a.isExplained() {
			continue
		}
		t.Run(a.String(), func(t *testing.T) { // alone, so that nothing is known from other answers (RFC 8198)
			for _, a := range askTrees(t, []uint64{a.seed}, a.String()) {
				assert.NotEqual(t, "we trust more", a.difference(), "seed %d, %s: %v", a.seed, a.faults, a.found)
			}
		})
	}
	t.Logf("%d seeds, %d questions; %d have no answer in time; %d groups of differences, and %d differences that are not found again\n"+
		"questions, a seed, difference | faults | fault of the root | question | unbound | BIND | ours%s", played, questions, silent, len(groups), once, table)
}
