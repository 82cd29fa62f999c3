package resolvers

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

const (
	crowdSize = 100 // questions at the same time
	rounds    = 3   // in which each is asked about zones that nobody knows
	dearer    = 1.5 // how often what the better of the peers sends may be sent here
)

// crowd is many questions about one zone, which cost a good resolver little.
type crowd struct {
	what string
	zone string // a label, to which the round is added
	add  func(l *lab, name string)
	ask  func(i int, name string) ask // the i-th question
	all  bool                         // at the same time, and not ten one after the other
}

var crowds = []crowd{
	{"names of one zone", "many", addVictim, func(i int, zone string) ask {
		return ask{name: fmt.Sprintf("r%d.victim.%s", i, zone), qtype: dns.TypeA}
	}, true},
	{"one name, with the client's subnet", "subnet", addVictim, func(_ int, zone string) ask {
		return ask{name: "www.victim." + zone, qtype: dns.TypeA, subnet: true}
	}, true},
	{"one name, without RD", "nord", addVictim, func(_ int, zone string) ask {
		return ask{name: "www.victim." + zone, qtype: dns.TypeA, noRecursion: true}
	}, true},
	{"no data and no SOA record, of eight servers", "nosoa", addBare, func(_ int, zone string) ask {
		return ask{name: "www." + zone, qtype: dns.TypeMX}
	}, false},
}

// addVictim adds a slow zone that delegates another, in which there are all names.
func addVictim(l *lab, name string) {
	parent := &zone{name: name, addrs: l.fresh(2), takes: 50 * time.Millisecond}
	l.add(l.root, parent)
	l.add(parent, &zone{name: "victim." + name, addrs: l.fresh(1), twist: ifType(dns.TypeA, func(q query, r *dns.Msg) *dns.Msg {
		return answers(q.name+" A 192.0.2.7")(q, r)
	})})
}

// addBare adds a zone whose eight servers answer that there are no such records, and no more, to types that they do not know.
func addBare(l *lab, name string) {
	l.add(l.root, &zone{name: name, addrs: l.fresh(8), takes: 40 * time.Millisecond, twist: ifType(dns.TypeMX, func(_ query, r *dns.Msg) *dns.Msg {
		r.Ns = nil
		return r
	})}, everyZone...)
}

// cost is what a crowd cost with one resolver.
type cost struct {
	sent int            // queries, in the round with the fewest: a machine that is busy only adds some
	said map[string]int // rcodes of all rounds
}

// TestCrowdsCostLittleMoreThanWithUnboundAndBIND: the queries to all servers are 1.5 times as many as those of the
// better of the two at most, and the answers are the same.
func TestCrowdsCostLittleMoreThanWithUnboundAndBIND(t *testing.T) {
	l := newLab(t)
	for round := range rounds {
		for _, c := range crowds {
			c.add(l, c.in(round))
		}
	}
	l.open(t)
	peers, ours := startAll(t, l)
	var table strings.Builder
	for _, c := range crowds {
		fmt.Fprintf(&table, "\n%-45s", c.what)
		better, theirs := math.MaxInt, []string(nil)
		for _, p := range peers {
			cost := c.play(t, l, p)
			better = min(better, cost.sent)
			theirs = append(theirs, cost.answers())
			fmt.Fprintf(&table, " | %3d %-16s", cost.sent, cost.answers())
		}
		cost := c.play(t, l, ours)
		fmt.Fprintf(&table, " | %3d %s", cost.sent, cost.answers())
		assert.LessOrEqual(t, float64(cost.sent), dearer*float64(better), c.what)
		assert.Contains(t, theirs, cost.answers(), c.what)
	}
	t.Logf("queries and answers of unbound | BIND | ours%s", table.String())
}

// in is the zone of a round.
func (c crowd) in(round int) string { return fmt.Sprintf("%s%d.", c.zone, round) }

// play asks a resolver.
func (c crowd) play(t *testing.T, l *lab, r *resolver) cost {
	t.Helper()
	sum := cost{sent: math.MaxInt, said: make(map[string]int)}
	for round := range rounds {
		zone := c.in(round)
		var outcomes []outcome
		if c.all {
			var all []ask
			for i := range crowdSize {
				all = append(all, c.ask(i, zone))
			}
			outcomes = r.crowd(t, all)
		} else {
			for i := range 10 {
				outcomes = append(outcomes, r.ask(t.Context(), c.ask(i, zone)))
			}
		}
		time.Sleep(200 * time.Millisecond) // queries that nobody needs any more are counted as well
		for _, o := range outcomes {
			if o.err != nil {
				sum.said["no answer"]++
			} else {
				sum.said[fmt.Sprintf("%s/%d%s", dns.RcodeToString[o.msg.Rcode], len(o.msg.Answer), o.why())]++
			}
		}
		sum.sent = min(sum.sent, l.count(r.from, zone))
	}
	return sum
}

// answers are the different answers: rcodes, and how many records they have.
func (c cost) answers() string {
	var all []string
	for s := range c.said {
		all = append(all, s)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
