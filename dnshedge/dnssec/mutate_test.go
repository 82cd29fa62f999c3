package dnssec_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// content returns what a response says, without what proves it.
func content(r *dns.Msg) (all []string) {
	for _, rr := range r.Answer {
		if rr.Header().Rrtype != dns.TypeRRSIG {
			rr = dns.Copy(rr)
			rr.Header().Ttl = 0
			all = append(all, rr.String())
		}
	}
	slices.Sort(all)
	return append(slices.Compact(all), dns.RcodeToString[r.Rcode])
}

// mutant is an upstream that spoils a share of its responses, in one to three ways each.
func mutant(w *world, random *rand.Rand, share float64) twist {
	names := []string{"www.example.", "no.example.", "x.w.example.", "www.plain.", "alias.example.", "x.d.other.", "www.deep.other.", "plain.", "example.", "no.other."}
	return func(_, r *dns.Msg) *dns.Msg {
		if random.Float64() >= share {
			return r
		}
		r.Answer, r.Ns = slices.Clone(r.Answer), slices.Clone(r.Ns)
		for range 1 + random.IntN(3) {
			section := &r.Answer
			if random.IntN(2) == 0 {
				section = &r.Ns
			}
			i := 0
			if len(*section) > 0 {
				i = random.IntN(len(*section))
			}
			other := w.resolve(names[random.IntN(len(names))], []uint16{dns.TypeA, dns.TypeTXT, dns.TypeDS, dns.TypeDNSKEY}[random.IntN(4)])
			switch random.IntN(8) {
			case 0:
				r.Rcode = []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain, dns.RcodeServerFailure}[random.IntN(4)]
			case 1:
				if len(*section) > 0 {
					*section = slices.Delete(*section, i, i+1)
				}
			case 2:
				*section = append(*section, other.Answer...)
			case 3:
				*section = append(*section, other.Ns...)
			case 4:
				*section = nil
			case 5:
				if len(*section) > 0 {
					rr := dns.Copy((*section)[i])
					switch rr := rr.(type) {
					case *dns.A:
						rr.A[3] ^= 1
					case *dns.CNAME:
						rr.Target = "www.plain."
					case *dns.DNAME:
						rr.Target = "plain."
					case *dns.RRSIG:
						rr.Labels++
					case *dns.NSEC:
						rr.NextDomain = "zzz.example."
					case *dns.DS:
						rr.Algorithm = dns.RSASHA1
					}
					(*section)[i] = rr
				}
			case 6:
				if len(*section) > 0 {
					rr := dns.Copy((*section)[i])
					rr.Header().Name = names[random.IntN(len(names))]
					(*section)[i] = rr
				}
			case 7:
				r.Answer, r.Ns, r.Rcode = other.Answer, other.Ns, other.Rcode
			}
		}
		return r
	}
}

// Whatever an upstream does, what a zone has not signed is not secure, and what is signed not insecure; and if another one is right, the answer is.
func TestValidatorAcceptsNoMutation(t *testing.T) {
	questions := []string{
		"www.example. A", "no.example. A", "www.example. AAAA", "x.w.example. TXT", "x.w.example. A", "alias.example. A", "far.example. A", "x.d.other. A",
		"no.other. A", "www.deep.other. A", "deep.other. DS", "out.example. A", "www.plain. A", "plain. DS", "x.w.other. TXT", "gone.example. A",
	}
	spoiled := 0
	for seed := range uint64(24) {
		synctest.Test(t, func(t *testing.T) {
			u := &upstreams{world: newWorld(t, estate)}
			random := rand.New(rand.NewPCG(seed, 1))
			alone := seed%2 == 0
			if u.order = []string{"192.0.2.1:53", "192.0.2.2:53"}; alone {
				u.order = nil
			}
			f := mutant(u.world, random, 0.4)
			u.set(func(q, r *dns.Msg) *dns.Msg {
				u.mu.Lock()
				defer u.mu.Unlock()
				return f(q, r)
			})
			v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{u.world.anchor()}}}
			defer v.Close()
			insecure := map[string]bool{"out.example. A": true, "www.plain. A": true}
			for range 3 {
				for _, question := range questions {
					what := fmt.Sprintf("seed %d: %s", seed, question)
					name, qtype := question[:len(question)-len(question[slices.Index([]byte(question), ' '):])], question[slices.Index([]byte(question), ' ')+1:]
					truth := u.world.resolve(name, dns.StringToType[qtype])
					r, err := ask(v, question)
					require.NoError(t, err, what)
					switch {
					case r.AuthenticatedData:
						assert.Equal(t, content(truth), content(r), what)
						assert.False(t, insecure[question], what)
					case r.Rcode == dns.RcodeServerFailure:
						spoiled++
					default:
						assert.True(t, insecure[question], "%s: %v", what, r)
					}
				}
				time.Sleep(10 * time.Minute)
			}
			synctest.Wait()
		})
	}
	assert.NotZero(t, spoiled)
}

// Who is silent, when another upstream is bogus, does not hide why.
func TestValidatorReportsBogusDespiteSilentUpstream(t *testing.T) {
	for _, report := range []bool{false, true} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			v.Trust.Report = report
			u.order = []string{"192.0.2.1:53", "192.0.2.2:53"}
			assert.Equal(t, "secure", security(t, v, "www.example. A"))
			u.set(resigned(func(sig *dns.RRSIG) { sig.Inception, sig.Expiration = 883612800, 915148800 }, dns.TypeA))
			u.silent = "192.0.2.2:53"
			want := "bogus 7"
			if report {
				want = "insecure"
			}
			start := time.Now()
			assert.Equal(t, want, security(t, v, "a.b.c.example. A"))
			assert.Equal(t, 4500*time.Millisecond, time.Since(start))
		})
	}
}
