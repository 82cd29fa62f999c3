package recursor_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	keys "github.com/gohedge/hedge/internal/signer"
)

// An attackCase is an attack by questions to a Resolver.
type attackCase struct {
	name, text string
	signed     bool // by setUp
	setUp      func(w *testNetwork)
	question   string // with the number of the question
}

// maxCPU returns the limit for the CPU time of a question: 10 ms, or 60 ms if all signatures are valid, because 1,024 units of
// verification, each of 50 µs, may be spent then. The limit is higher on a machine that needs more time for a unit.
func (c *attackCase) maxCPU(t *testing.T) time.Duration {
	limit := 200 * verificationTime(t)
	if strings.HasPrefix(c.name, "valid ") {
		limit *= 6
	}
	return limit
}

// verificationTime returns the CPU time that a verification of a signature by ECDSA P-256 takes, at least 50 µs.
func verificationTime(t *testing.T) time.Duration {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	hash := make([]byte, 32)
	signature, err := ecdsa.SignASN1(rand.Reader, key, hash)
	require.NoError(t, err)
	start := cpuTime(t)
	for range 100 {
		ecdsa.VerifyASN1(&key.PublicKey, hash, signature)
	}
	return max(50*time.Microsecond, (cpuTime(t)-start)/100)
}

// number returns the i-th question.
func (c *attackCase) number(i int) string { return strings.Replace(c.question, "%d", fmt.Sprint(i), 1) }

// attacks returns the attacks that may delay other questions. The first is none.
func attacks() []attackCase {
	chain, bad := repeatedValidation()
	trapped := func(algorithm uint8, ofKeys bool) func(*testNetwork) {
		all := withTag("broken.tld.", algorithm, 4711, 16)
		return func(w *testNetwork) {
			signZones(w)
			w.setFault("192.0.3.4", nil)
			w.withLock(func() { trap(w, all, ofKeys) })
		}
	}
	hostile := func(messages func(query) [][]byte) func(*testNetwork) {
		return func(w *testNetwork) { w.updateServers("203.0.113.66", func(s *server) { s.raw = messages }) }
	}
	return []attackCase{
		{"no attack", signed, true, signZones, "n%d.example.tld. A"},
		{"NXNS, 1,500 names of servers", attack, false, func(w *testNetwork) { nameservers(w, 1500, "victim.") }, "www%d.sub.attack. A"},
		{"aliases times names of servers", aliasAttack, false, setUpAliasAttack, "x.z%d00.attack. A"},
		{"1,000 addresses as glue", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, true, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"1,000 addresses of a name", addressAttack, false, func(w *testNetwork) { setUpAddressAttack(w, false, respondRcode(dns.RcodeServerFailure)) }, "www%d.sub.attack. A"},
		{"servers with forged signatures", chain, true, func(w *testNetwork) { w.sign(); w.setFault(bad, forged) }, "www.z0.tld. A"},
		{"KeyTrap, Ed25519", signed, true, trapped(dns.ED25519, false), "n%d.broken.tld. A"},
		{"KeyTrap, P-384", signed, true, trapped(dns.ECDSAP384SHA384, false), "n%d.broken.tld. A"},
		{"KeyTrap of keys, P-384", signed, true, trapped(dns.ECDSAP384SHA384, true), "n%d.broken.tld. A"},
		{"NSEC3 of 50 iterations, long salt", replayed, true, func(w *testNetwork) {
			w.sign()
			w.zone("evil.tld.").proveBy(keys.NSEC3, keys.NSEC3Params{Iterations: 50, Salt: strings.Repeat("ab", 255)})
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"unsigned answers to a long name", replayed, true, func(w *testNetwork) {
			w.sign()
			w.setFault("192.0.3.3 192.0.3.4", onlyForType(dns.TypeA, func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" A 203.0.113.66")(q, r) }))
		}, strings.Repeat("a.", 100) + "n%d.evil.tld. A"},
		{"a silent zone", hostileZones, false, func(w *testNetwork) { w.setFault("203.0.113.66", silent) }, "www%d.evil. A"},
		{"silent zones of eight servers", hostileZones, false, func(w *testNetwork) {
			w.setFault("203.0.113.66", func(q query, r *dns.Msg) *dns.Msg {
				labels := dns.SplitDomainName(q.name)
				zone, number := dns.Fqdn(labels[max(len(labels)-2, 0)]+".evil"), 0
				_, _ = fmt.Sscanf(zone, "z%d.", &number)
				ns, glue := "", ""
				for i := range 8 {
					ns += fmt.Sprintf("%s NS ns%d.%[1]s;", zone, i)
					glue += fmt.Sprintf("ns%d.%s A 203.1.%d.%d;", i, zone, number%250, 1+i+8*(number/250))
				}
				return respondWith("referral|"+ns+"|"+glue)(q, r)
			})
		}, "www.z%d.evil. A"},
		{"silent zones of servers that answered for others", hostileZones, false, func(w *testNetwork) {
			number := func(q query) (zone string, n int) {
				zone = dnsLabels(q.name, 2)
				_, _ = fmt.Sscanf(zone, "z%d.", &n)
				return zone, n
			}
			w.setFault("203.0.113.66", func(q query, r *dns.Msg) *dns.Msg {
				zone, n := number(q)
				return respondWith(fmt.Sprintf("referral | %s NS ns1.%[1]s; %[1]s NS ns2.%[1]s | ns1.%[1]s A 203.1.%d.1; ns2.%[1]s A 203.1.%[2]d.2", zone, n%100))(q, r)
			})
			w.other = func(netip.Addr) *server {
				return &server{change: func(q query, r *dns.Msg) *dns.Msg {
					if _, n := number(q); n >= 200 {
						return nil
					}
					return respondWith(q.name+" A 203.0.113.66")(q, r)
				}}
			}
		}, "www.z%d.evil. A"},
		{"16,000 options", hostileZones, false, hostile(message([3]uint16{0, 0, 1}, func(query) []byte { return raw([]byte{0}, dns.TypeOPT, make([]byte, 64000)) })), "www%d.evil. A"},
		{"60,000 empty texts", hostileZones, false, hostile(message([3]uint16{0, 1}, func(query) []byte { return raw(nil, dns.TypeTXT, make([]byte, 60000)) })), "www%d.evil. A"},
		{"3,200 names in 64 kB", hostileZones, false, hostile(stream(1<<10, func(query) (s [3][][]byte) {
			for i := range 3200 {
				s[0] = append(s[0], raw(nil, dns.TypeSRV, []byte{0, 0, 0, 0, byte(i >> 8), byte(i), 0xc0, 12}))
			}
			return s
		})), "www%d.evil. SRV"},
	}
}

// costlyAttacks returns further attacks, with the responses that are known to be most costly.
func costlyAttacks() (all []attackCase) {
	evil := func(name string, messages func(query) [][]byte, qtype string) {
		all = append(all, attackCase{name, hostileZones, false, func(w *testNetwork) {
			w.updateServers("203.0.113.66", func(s *server) { s.raw = messages })
		}, "www%d.evil. " + qtype})
	}
	fault := func(name string, change func(query, *dns.Msg) *dns.Msg, question string) {
		all = append(all, attackCase{name, hostileZones, false, func(w *testNetwork) { w.setFault("203.0.113.66", change) }, question})
	}
	signedFault := func(name string, setUp func(w *testNetwork), question string) {
		all = append(all, attackCase{name, replayed, true, func(w *testNetwork) { w.sign(); setUp(w) }, question})
	}
	// Loops and chains.
	all = append(all, attackCase{"zones that need each other", cycle, false, func(*testNetwork) {}, "www.three.tld. A"})
	all = append(all, attackCase{"names of servers that need names of servers", ". served 198.41.0.4\ntld. delegated 192.0.2.1\n", false, setUpDependentNames, "www.z0.tld. A"})
	fault("a referral for each label", func(q query, r *dns.Msg) *dns.Msg {
		zone := dnsLabels(q.name, max(2, len(dns.SplitDomainName(q.name))))
		return respondWith(fmt.Sprintf("referral | %s NS ns.%[1]s | ns.%[1]s A 203.0.113.66", zone))(q, r)
	}, strings.Repeat("a.", 100)+"n%d.evil. A")
	fault("an alias for each name", func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" CNAME x"+q.name)(q, r) }, "www%d.evil. A")
	fault("a DNAME record for each name", func(q query, r *dns.Msg) *dns.Msg {
		return respondWith("evil. DNAME a.b.c.d.e.f.evil.; "+q.name+" CNAME "+strings.TrimSuffix(q.name, "evil.")+"a.b.c.d.e.f.evil.")(q, r)
	}, "www%d.evil. A")
	// Records that are not asked for, and forged responses.
	evil("3,000 records of other names", withRecords(func() (s [3][][]byte) {
		for i := range 1000 {
			owner := wireName(fmt.Sprintf("n%d.", i))
			for k := range s {
				s[k] = append(s[k], raw(owner, dns.TypeA, []byte{203, 0, 113, 66}))
			}
		}
		return s
	}), "A")
	evil("500 responses with wrong IDs", func(q query) (messages [][]byte) {
		for i := range 500 {
			wrong := q.Copy()
			wrong.Id += uint16(i) + 1
			messages = append(messages, message([3]uint16{}, func(query) []byte { return nil })(query{wrong, q.name, q.qtype, q.tcp})...)
		}
		return messages
	}, "A")
	evil("1,000 private addresses as glue", stream(0, func(query) (s [3][][]byte) {
		s[1] = [][]byte{raw(wireName("sub.evil."), dns.TypeNS, wireName("ns.sub.evil."))}
		for i := range 1000 {
			s[2] = append(s[2], raw(wireName("ns.sub.evil."), dns.TypeA, []byte{10, 0, byte(i >> 8), byte(i)}))
		}
		return s
	}), "A")
	all[len(all)-1].question = "www%d.sub.evil. A"
	// Malformed and oversized messages.
	malformed := malformedMessages()
	for _, name := range slices.Sorted(maps.Keys(malformed)) {
		evil(name, malformed[name], "A")
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		all = append(all, attackCase{"64 kB: " + name, strings.ReplaceAll(hostileZones, "evil.", "example."), false, func(w *testNetwork) { sendWorst(w, worst[name](1<<16-1)) }, worstQuestion(name)})
	}
	evil("names of 110 labels by pointers", message([3]uint16{0, 1800}, longNames), "A")
	evil("bitmaps of all types", withRecords(func() (s [3][][]byte) {
		data := wireName("x.evil.")
		for window := range 256 {
			data = append(append(data, byte(window), 32), strings.Repeat("\xff", 32)...)
		}
		for range 7 {
			s[1] = append(s[1], raw(nil, dns.TypeNSEC, data))
		}
		return s
	}), "A")
	evil("15,000 parameters of a service", withRecords(func() (s [3][][]byte) {
		data := []byte{0, 1, 0}
		for i := range 15000 {
			data = append(data, byte((i+100)>>8), byte(i+100), 0, 0)
		}
		s[0] = append(s[0], raw(nil, dns.TypeHTTPS, data))
		return s
	}), "HTTPS")
	evil("60,000 empty texts of a rare type", withRecords(func() (s [3][][]byte) {
		s[0] = append(s[0], raw(nil, dns.TypeNINFO, make([]byte, 60000)))
		return s
	}), "NINFO")
	evil("15,000 prefixes of addresses", withRecords(func() (s [3][][]byte) {
		s[0] = append(s[0], raw(nil, dns.TypeAPL, []byte(strings.Repeat("\x00\x01\x08\x00", 15000))))
		return s
	}), "APL")
	// Signatures, keys and proofs.
	for _, name := range []string{"a wildcard with the proof of another name", "the zone as signer, with the key of another", "the denial of another name", "NSEC3 records signed by another zone"} {
		signedFault(name, func(w *testNetwork) {
			w.setFault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
				if a := replays(w)[name]; dns.IsSubDomain("example.tld.", q.name) && q.qtype == dns.TypeA {
					return a.send(q, r)
				}
				return r
			})
		}, map[bool]string{true: "host.w.example.tld. A", false: "www.example.tld. A"}[strings.HasPrefix(name, "a wildcard")])
	}
	signedFault("no signatures", func(w *testNetwork) { w.setFault("192.0.3.1 192.0.3.2", allStripped) }, strings.Repeat("a.", 100)+"n%d.example.tld. A")
	signedFault("2,500 iterations", func(w *testNetwork) {
		w.zone("evil.tld.").proveBy(keys.NSEC3, keys.NSEC3Params{Iterations: 2500})
	}, strings.Repeat("a.", 100)+"n%d.evil.tld. A")
	signedFault("2,000 malformed keys of one tag", func(w *testNetwork) { sendMalformedKeys(w, "192.0.3.3 192.0.3.4", w.zone("evil.tld."), 2000) }, "n%d.evil.tld. A")
	for _, size := range [][2]int{{4096, 31}, {4096, 64}, {2048, 2048}, {4096, 4096}} {
		signedFault(fmt.Sprintf("RSA keys of %d bits, exponents of %d", size[0], size[1]), func(w *testNetwork) {
			w.withLock(func() { signWithRSA(w.zone("evil.tld."), size[0], size[1]) })
		}, "n%d.evil.tld. A")
	}
	chain, _ := repeatedValidation()
	all = append(all, attackCase{"valid signatures, P-384", chain, true, func(w *testNetwork) { w.signWith(newP384Signer) }, "www.z0.tld. A"})
	text := ". served 198.41.0.4\ntld. delegated 192.0.2.1\n"
	for i := range 11 {
		text += fmt.Sprintf("z%d.tld. delegated 192.0.4.%d\n  a.b.c.d.e.f CNAME a.b.c.d.e.f.z%d.tld.\n", i, i+1, i+1)
	}
	all = append(all, attackCase{"valid proofs, P-384", text, true, func(w *testNetwork) { w.signWith(newP384Signer) }, "a.b.c.d.e.f.z0.tld. A"})
	return all
}

// dnsLabels returns the last n labels of a name.
func dnsLabels(name string, n int) string {
	labels := dns.SplitDomainName(name)
	return strings.Join(labels[max(0, len(labels)-n):], ".") + "."
}

// withRecords makes a server send responses with the same records, in wire format, to all queries.
func withRecords(records func() [3][][]byte) func(query) [][]byte {
	var counts [3]uint16
	var tail []byte
	for i, section := range records() {
		counts[i] = uint16(len(section))
		tail = append(tail, bytes.Join(section, nil)...)
	}
	return message(counts, func(query) []byte { return tail })
}

// longNames returns SOA records with three names each. Each name is a chain of 110 compression pointers.
func longNames(q query) (tail []byte) {
	start := 12 + len(wireName(q.name)) + 4
	last := 12 // offset of the longest name so far
	for i := range 1800 {
		pointer := []byte{0xc0 | byte(last>>8), byte(last)}
		owner := pointer
		if i < 110 {
			owner = append([]byte{1, 'a'}, pointer...)
			last = start + len(tail)
		}
		tail = append(tail, raw(owner, dns.TypeSOA, append(append(append([]byte(nil), pointer...), pointer...), make([]byte, 20)...))...)
	}
	return tail
}

// sendWorst makes the server of the attacker's zone send the response b to its question.
func sendWorst(w *testNetwork, b []byte) {
	empty := message([3]uint16{}, func(query) []byte { return nil })
	w.updateServers("203.0.113.66", func(s *server) {
		s.raw = func(q query) [][]byte {
			switch {
			case q.name != name(b):
				return empty(q)
			case !q.tcp:
				return stream(1<<10, nil)(q)
			}
			m := bytes.Clone(b)
			binary.BigEndian.PutUint16(m, q.Id)
			return [][]byte{m}
		}
	})
}

// worstQuestion returns the question of a response in worst.
func worstQuestion(response string) string { return name(worst[response](512)) + " A" }

// sendMalformedKeys makes servers of a zone send n keys that have the tag of the right one and are malformed.
func sendMalformedKeys(w *testNetwork, servers string, z *zone, n int) {
	tag := z.signer.key.KeyTag()
	records := func(query) (s [3][][]byte) {
		for i := range n {
			k := dns.Copy(z.signer.key).(*dns.DNSKEY)
			data := []byte{byte(i >> 8), byte(i), 0, 0, 0, 0}
			for x := 0; k.KeyTag() != tag || x == 0; x++ {
				binary.BigEndian.PutUint16(data[4:], tag-uint16(i)-uint16(x)-k.Flags-3<<8-uint16(k.Algorithm))
				k.PublicKey = base64.StdEncoding.EncodeToString(data)
			}
			s[0] = append(s[0], raw(nil, dns.TypeDNSKEY, packRecord(k)[len(wireName(z.name))+10:]))
		}
		sig := packRecord(z.signer.sign([]dns.RR{z.signer.key}))[len(wireName(z.name))+10:]
		s[0] = append(s[0], raw(nil, dns.TypeRRSIG, sig))
		return s
	}
	messages := withRecords(func() [3][][]byte { return records(query{}) })
	w.updateServers(servers, func(s *server) {
		right := &server{zones: s.zones}
		s.raw = func(q query) [][]byte {
			if q.qtype == dns.TypeDNSKEY && q.name == z.name {
				return messages(q)
			}
			return right.respond(q)
		}
	})
}

// signWithRSA gives a signed zone eight RSA keys, and replaces all signatures but those of the keys by invalid ones of these
// keys.
func signWithRSA(z *zone, bits, exponentBits int) {
	var all []*dns.DNSKEY
	for i := range 8 {
		exponent, modulus := bytes.Repeat([]byte{0xff}, (exponentBits+7)/8), bytes.Repeat([]byte{0xff}, bits/8)
		exponent[0] >>= 8*len(exponent) - exponentBits
		modulus[1] = byte(i)
		k := dns.Copy(z.signer.key).(*dns.DNSKEY)
		k.Algorithm = dns.RSASHA256
		k.PublicKey = base64.StdEncoding.EncodeToString(slices.Concat([]byte{0, byte(len(exponent) >> 8), byte(len(exponent))}, exponent, modulus))
		z.put(k)
		all = append(all, k)
	}
	z.sign()
	for _, sets := range z.sets {
		for _, rr := range slices.Clone(sets[dns.TypeRRSIG]) {
			right := rr.(*dns.RRSIG)
			if right.TypeCovered == dns.TypeDNSKEY {
				continue
			}
			sets[dns.TypeRRSIG] = slices.DeleteFunc(sets[dns.TypeRRSIG], func(rr dns.RR) bool { return rr == dns.RR(right) })
			for _, k := range all {
				wrong := dns.Copy(right).(*dns.RRSIG)
				wrong.Algorithm, wrong.KeyTag = k.Algorithm, k.KeyTag()
				wrong.Signature = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0x55}, bits/8))
				sets[dns.TypeRRSIG] = append(sets[dns.TypeRRSIG], wrong)
			}
		}
	}
}
