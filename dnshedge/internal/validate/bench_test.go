package validate_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// BenchmarkVerify verifies RRsets that were never seen before, as package dns does, too.
func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct {
		name      string
		algorithm uint8
		bits      int
	}{
		{"RSASHA256-1024", dns.RSASHA256, 1024}, {"RSASHA256-2048", dns.RSASHA256, 2048}, {"RSASHA256-4096", dns.RSASHA256, 4096},
		{"P256", dns.ECDSAP256SHA256, 256}, {"P384", dns.ECDSAP384SHA384, 384}, {"Ed25519", dns.ED25519, 256},
	} {
		s := newSigner(b, "example.", c.algorithm, c.bits, ksk)
		k := trust(b, s)
		for _, n := range []int{1, 8} {
			var rrs []dns.RR
			for i := range n {
				rrs = append(rrs, records(b, fmt.Sprintf("a.example. 300 IN A 192.0.2.%d", 200-i))...)
			}
			sig := s.sign(b, rrs)
			b.Run(fmt.Sprintf("%s/rrs=%d/ours", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := new(validate.Validation).Verify(validate.NewRRset(rrs, sig), k, now); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("%s/rrs=%d/dns", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := sig.Verify(s.key, rrs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkWrong has the same large RRset with signatures that are wrong: the second costs less than the first.
func BenchmarkWrong(b *testing.B) {
	s := seeded("example.", ksk, 1)
	k := trust(b, s)
	var rrs []dns.RR
	for i := range 1000 {
		rrs = append(rrs, records(b, fmt.Sprintf("a.example. 300 IN A 10.0.%d.%d", i>>8, i&255))...)
	}
	for _, n := range []int{1, 8} {
		var sigs []*dns.RRSIG
		for range n {
			sig := s.sign(b, rrs[:1])
			sigs = append(sigs, sig)
		}
		b.Run(fmt.Sprintf("sigs=%d/ours", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := new(validate.Validation).Verify(validate.NewRRset(rrs, sigs...), k, now); err == nil {
					b.Fatal("it is right")
				}
			}
		})
		b.Run(fmt.Sprintf("sigs=%d/dns", n), func(b *testing.B) {
			for b.Loop() {
				for _, sig := range sigs {
					if err := sig.Verify(s.key, rrs); err == nil {
						b.Fatal("it is right")
					}
				}
			}
		})
	}
}

func BenchmarkDenies(b *testing.B) {
	s := seeded("example.", ksk, 1)
	k := trust(b, s)
	for _, c := range []struct {
		name string
		sets []*validate.RRset
	}{
		{"NSEC", nsecs(b, s, "l.example. n.example. A", "example. a.example. NS SOA")},
		{"NSEC3-0", nsec3Zone{"1 0 0 -", map[string]string{"example.": "NS SOA"}}.sign(b, s)},
		{"NSEC3-50", nsec3Zone{"1 0 50 ab", map[string]string{"example.": "NS SOA"}}.sign(b, s)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := new(validate.Validation).VerifyDenial("m.example.", dns.TypeA, c.sets, k, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkKeys reads and verifies a DNSKEY RRset that was never seen before.
func BenchmarkKeys(b *testing.B) {
	for _, algorithm := range []uint8{dns.RSASHA256, dns.ECDSAP256SHA256} {
		bits := map[uint8]int{dns.RSASHA256: 2048, dns.ECDSAP256SHA256: 256}[algorithm]
		s, z := newSigner(b, "example.", algorithm, bits, ksk), newSigner(b, "example.", algorithm, bits, zsk)
		ds := validate.UnverifiedDS(validate.NewRRset([]dns.RR{s.ds(b, dns.SHA256)}))
		set := dnskeys(b, s, z)
		b.Run(dns.AlgorithmToString[algorithm], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := new(validate.Validation).VerifyDNSKEY(ds, validate.NewRRset(set.Records, set.Sigs...), now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
