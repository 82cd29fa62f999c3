package signer

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/miekg/dns"
)

// A Denial is the method by which a signed zone proves that a name or a record type does not exist.
type Denial int

const (
	NSEC        Denial = iota // NSEC records (RFC 4034)
	MinimalNSEC               // NSEC records that cover a minimal range and are made for each answer (RFC 4470)
	NSEC3                     // NSEC3 records (RFC 5155)
	NSEC3OptOut               // NSEC3 records with opt-out: delegations without DS have no NSEC3 record (RFC 5155 §6)
)

// NSEC3Params are the parameters of the hash in NSEC3 records. The zero value means no additional iterations and no salt.
type NSEC3Params struct {
	Iterations uint16 // number of additional iterations of the hash
	Salt       string // salt in hexadecimal; "": no salt
}

// A Chain makes the NSEC or NSEC3 records by which one zone proves that names or record types do not exist. The records are not
// signed. A Chain is immutable, and safe for concurrent use.
type Chain struct {
	zone        string              // name of the zone
	denial      Denial              // method of the proofs
	hashing     NSEC3Params         // parameters of NSEC3 hashes
	ttl         uint32              // TTL of the records in seconds
	types       map[string][]uint16 // record types of each name in the chain; nil: an empty non-terminal
	owners      []string            // owners of the records in canonical order: names, or hashes for NSEC3
	namesByHash map[string]string   // name for each hash; empty unless the zone uses NSEC3
}

// NewChain returns the chain of a zone. The argument how is the method of the proofs, h has the parameters of NSEC3
// hashes, and ttl is the TTL of the records in seconds.
//
// The argument types lists the record types of each name in the zone, except for the types that signing adds. Names
// must be in lower case. A delegation has the type NS and possibly DS. Names below a delegation must be left out.
func NewChain(zone string, how Denial, h NSEC3Params, ttl uint32, types map[string][]uint16) *Chain {
	c := &Chain{zone: zone, denial: how, hashing: h, ttl: ttl, types: make(map[string][]uint16), namesByHash: make(map[string]string)}
	for name, all := range types {
		if how == NSEC3OptOut && name != zone && slices.Equal(all, []uint16{dns.TypeNS}) {
			continue
		}
		c.types[name] = all
		for above := parentName(name); name != zone && above != zone; above = parentName(above) {
			if _, ok := types[above]; !ok {
				c.types[above] = nil
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.types), Compare) {
		if how == NSEC3 || how == NSEC3OptOut {
			hash := c.hashName(name)
			c.namesByHash[hash] = name
			c.owners = append(c.owners, hash)
		} else if c.types[name] != nil {
			c.owners = append(c.owners, name)
		}
	}
	if len(c.namesByHash) > 0 {
		slices.Sort(c.owners)
	}
	return c
}

// ProveNoData returns the records for a NODATA response: they prove that name exists, and which record types it has. If
// name is an opted-out delegation, they prove that the chain does not contain name.
func (c *Chain) ProveNoData(name string) []dns.RR {
	if _, ok := c.types[name]; !ok {
		return c.ProveNoCloserName(name) // a delegation that is opted out
	}
	if c.usesNSEC3() {
		return []dns.RR{c.matchingRecord(c.hashName(name))}
	}
	return []dns.RR{c.matchingRecord(name)}
}

// ProveNoName returns the records for an NXDOMAIN response: they prove that name does not exist, and that no wildcard
// matches name.
func (c *Chain) ProveNoName(name string) []dns.RR {
	above, _ := c.closestEncloser(name)
	return removeDuplicates(append(c.ProveNoCloserName(name), c.coveringRecord("*."+strings.TrimPrefix(above, "."))))
}

// ProveNoCloserName returns the records which prove that the next closer name of name does not exist. The next closer
// name is one label longer than the closest encloser of name. Answers from wildcards and referrals to opted-out
// delegations need this proof.
func (c *Chain) ProveNoCloserName(name string) []dns.RR {
	above, next := c.closestEncloser(name)
	if c.usesNSEC3() {
		return removeDuplicates([]dns.RR{c.matchingRecord(c.hashName(above)), c.coveringRecord(next)})
	}
	return []dns.RR{c.coveringRecord(next)}
}

// ProveNoWildcardData returns the records for a NODATA response from a wildcard. They prove that name does not exist,
// and which record types the wildcard that matches name has.
func (c *Chain) ProveNoWildcardData(name string) []dns.RR {
	above, _ := c.closestEncloser(name)
	return removeDuplicates(append(c.ProveNoCloserName(name), c.ProveNoData("*."+strings.TrimPrefix(above, "."))...))
}

// Len returns the number of owner names in the chain. Each owner has one NSEC or NSEC3 record.
func (c *Chain) Len() int { return len(c.owners) }

// usesNSEC3 reports whether the zone has NSEC3 records, with or without opt-out.
func (c *Chain) usesNSEC3() bool { return c.denial == NSEC3 || c.denial == NSEC3OptOut }

// hashName returns the NSEC3 hash of a name, in lower case.
func (c *Chain) hashName(name string) string {
	return strings.ToLower(dns.HashName(name, dns.SHA1, c.hashing.Iterations, c.hashing.Salt))
}

// closestEncloser returns the closest encloser of name: the longest existing name that name equals or ends with. It
// also returns the next closer name, which is one label longer, or "" if name exists (RFC 5155 §1.3).
func (c *Chain) closestEncloser(name string) (encloser, nextCloser string) {
	for encloser = name; ; encloser = parentName(encloser) {
		if _, ok := c.types[encloser]; ok || encloser == "." {
			return encloser, nextCloser
		}
		nextCloser = encloser
	}
}

// coveringRecord returns the NSEC or NSEC3 record that covers name, and so proves that name does not exist.
func (c *Chain) coveringRecord(name string) dns.RR {
	switch {
	case c.usesNSEC3():
		return c.matchingRecord(c.hashName(name))
	case c.denial == MinimalNSEC:
		return c.newNSEC(predecessorName(name), successorBelow(name), []uint16{dns.TypeA})
	}
	return c.matchingRecord(name)
}

// matchingRecord returns the NSEC record whose owner is the given name, or the NSEC3 record whose owner is the given
// hash. If there is none, it returns the record that covers the name or hash.
func (c *Chain) matchingRecord(name string) dns.RR {
	compare := Compare
	if c.usesNSEC3() {
		compare = strings.Compare
	}
	if c.denial == MinimalNSEC {
		return c.newNSEC(name, nextName(name), c.types[name])
	}
	i := sort.Search(len(c.owners), func(i int) bool { return compare(c.owners[i], name) > 0 }) - 1
	if i < 0 {
		i = len(c.owners) - 1
	}
	owner, next := c.owners[i], c.owners[(i+1)%len(c.owners)]
	if c.usesNSEC3() {
		return c.newNSEC3(owner, next, c.types[c.namesByHash[owner]])
	}
	return c.newNSEC(owner, next, c.types[owner])
}

// newNSEC returns an NSEC record for the name owner, where next is the next name in the chain. The argument types lists
// the record types of owner; newNSEC adds the types that signing adds.
func (c *Chain) newNSEC(owner, next string, types []uint16) dns.RR {
	types = append(slices.Clone(types), dns.TypeRRSIG, dns.TypeNSEC)
	if owner == c.zone {
		types = append(types, dns.TypeDNSKEY)
	}
	slices.Sort(types)
	return &dns.NSEC{Hdr: c.newHeader(owner, dns.TypeNSEC), NextDomain: next, TypeBitMap: types}
}

// newNSEC3 returns an NSEC3 record for the hash owner, where next is the next hash in the chain. The argument types
// lists the record types of the hashed name; newNSEC3 adds the types that signing adds.
func (c *Chain) newNSEC3(owner, next string, types []uint16) dns.RR {
	types = slices.Clone(types)
	if delegates := slices.Contains(types, dns.TypeNS) && !slices.Contains(types, dns.TypeSOA); len(types) > 0 && (!delegates || slices.Contains(types, dns.TypeDS)) {
		types = append(types, dns.TypeRRSIG)
	}
	if c.namesByHash[owner] == c.zone {
		types = append(types, dns.TypeDNSKEY)
	}
	slices.Sort(types)
	var flags uint8
	if c.denial == NSEC3OptOut {
		flags = 1
	}
	return &dns.NSEC3{
		Hdr: c.newHeader(owner+"."+strings.TrimPrefix(c.zone, "."), dns.TypeNSEC3), Hash: dns.SHA1, Flags: flags, Iterations: c.hashing.Iterations,
		SaltLength: uint8(len(c.hashing.Salt) / 2), Salt: c.hashing.Salt, HashLength: 20, NextDomain: next, TypeBitMap: types,
	}
}

// newHeader returns the header of a record with the owner name and the type t.
func (c *Chain) newHeader(owner string, t uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: t, Class: dns.ClassINET, Ttl: c.ttl}
}

// removeDuplicates returns the records with different owner names. Of several records with the same owner name, it
// returns the first.
func removeDuplicates(all []dns.RR) (out []dns.RR) {
	for _, rr := range all {
		if !slices.ContainsFunc(out, func(o dns.RR) bool { return o.Header().Name == rr.Header().Name }) {
			out = append(out, rr)
		}
	}
	return out
}

// Compare compares two names in the canonical order of RFC 4034 §6.1, and returns -1, 0 or 1. The names must be in lower case.
func Compare(a, b string) int {
	return slices.CompareFunc(reversedLabels(a), reversedLabels(b), bytes.Compare)
}

// reversedLabels returns the labels of a name without escapes, starting with the top-level domain. It panics if name is
// invalid.
func reversedLabels(name string) (all [][]byte) {
	b := make([]byte, 256)
	if _, err := dns.PackDomainName(name, b, 0, nil, false); err != nil {
		panic(fmt.Sprint(name, err))
	}
	for b[0] != 0 {
		all = append(all, b[1:1+b[0]])
		b = b[1+b[0]:]
	}
	slices.Reverse(all)
	return all
}

// parentName returns the name without its first label. The parent of a top-level domain, and of the root, is ".".
func parentName(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// predecessorName returns a name that is shortly before the given name in the canonical order, so that hardly any name lies
// between them.
func predecessorName(name string) string {
	first := escapeFirstLabel(name)
	last := len(first) - len(`\000`)
	var b byte
	if _, err := fmt.Sscanf(first[last:], `\%d`, &b); err != nil || b == 0 {
		panic("signer: no name in front of " + name)
	}
	return fmt.Sprintf(`%s\%03d\255.%s`, first[:last], b-1, strings.TrimPrefix(parentName(name), "."))
}

// successorBelow returns a name that is shortly after the given name, and after all names below it, in the canonical order.
func successorBelow(name string) string {
	return escapeFirstLabel(name) + `\000.` + strings.TrimPrefix(parentName(name), ".")
}

// escapeFirstLabel returns the first label of a name, with each byte written as an escaped decimal number such as \097.
func escapeFirstLabel(name string) string {
	all := reversedLabels(name)
	text := ""
	for _, b := range all[len(all)-1] {
		text += fmt.Sprintf(`\%03d`, b)
	}
	return text
}

// nextName returns the name that immediately follows the given name in the canonical order.
func nextName(name string) string { return `\000.` + strings.TrimPrefix(name, ".") }
