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

// Denial is how a zone proves that it has no such name or record.
type Denial int

const (
	NSEC     Denial = iota // the names of the zone in a chain (RFC 4034)
	Minimal                // no more than needed, made when it is asked for (RFC 4470)
	NSEC3                  // hashes of the names in a chain (RFC 5155)
	NSEC3Out               // without delegations that are not signed (RFC 5155 §6)
)

// Hashing are the parameters of NSEC3. The zero value has no iterations and no salt.
type Hashing struct {
	Iterations uint16
	Salt       string // hexadecimal
}

// Chain proves what a zone does not have. It returns records that are not signed yet.
type Chain struct {
	zone        string
	denial      Denial
	hashing     Hashing
	ttl         uint32
	types       map[string][]uint16 // of all names that are in the chain; nil: something is below them
	owners      []string            // names, or hashes
	namesByHash map[string]string   // names by their hash
}

// NewChain returns the chain of a zone. The types are those of all names that it has, in lower case, without those that come
// by signing; a delegation has NS and perhaps DS, and what is below it is not the zone's.
func NewChain(zone string, how Denial, h Hashing, ttl uint32, types map[string][]uint16) *Chain {
	c := &Chain{zone: zone, denial: how, hashing: h, ttl: ttl, types: make(map[string][]uint16), namesByHash: make(map[string]string)}
	for name, all := range types {
		if how == NSEC3Out && name != zone && slices.Equal(all, []uint16{dns.TypeNS}) {
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
		if how == NSEC3 || how == NSEC3Out {
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

// NoData proves that a name, or the one that is above all names like it, has no records of a type.
func (c *Chain) NoData(name string) []dns.RR {
	if _, ok := c.types[name]; !ok {
		return c.NoCloser(name) // a delegation that is opted out
	}
	if c.usesNSEC3() {
		return []dns.RR{c.matchingRecord(c.hashName(name))}
	}
	return []dns.RR{c.matchingRecord(name)}
}

// NoName proves that there is no such name, nor a wildcard that it could be made of.
func (c *Chain) NoName(name string) []dns.RR {
	above, _ := c.closestEncloser(name)
	return removeDuplicates(append(c.NoCloser(name), c.coveringRecord("*."+strings.TrimPrefix(above, "."))))
}

// NoCloser proves that a name does not exist, and nothing that is closer to it than the closest name that does: for answers
// made of wildcards, which need the name below alone, and delegations that are opted out.
func (c *Chain) NoCloser(name string) []dns.RR {
	above, next := c.closestEncloser(name)
	if c.usesNSEC3() {
		return removeDuplicates([]dns.RR{c.matchingRecord(c.hashName(above)), c.coveringRecord(next)})
	}
	return []dns.RR{c.coveringRecord(next)}
}

// NoWildcardData proves that the wildcard of which a name is made has no records of a type.
func (c *Chain) NoWildcardData(name string) []dns.RR {
	above, _ := c.closestEncloser(name)
	return removeDuplicates(append(c.NoCloser(name), c.NoData("*."+strings.TrimPrefix(above, "."))...))
}

// Len returns how many records the chain has; those that are minimal have no chain.
func (c *Chain) Len() int { return len(c.owners) }

func (c *Chain) usesNSEC3() bool { return c.denial == NSEC3 || c.denial == NSEC3Out }

func (c *Chain) hashName(name string) string {
	return strings.ToLower(dns.HashName(name, dns.SHA1, c.hashing.Iterations, c.hashing.Salt))
}

// closestEncloser returns the closest name above one that exists, and the one below that.
func (c *Chain) closestEncloser(name string) (above, next string) {
	for above = name; ; above = parentName(above) {
		if _, ok := c.types[above]; ok || above == "." {
			return above, next
		}
		next = above
	}
}

// coveringRecord returns the record that covers a name which does not exist.
func (c *Chain) coveringRecord(name string) dns.RR {
	switch {
	case c.usesNSEC3():
		return c.matchingRecord(c.hashName(name))
	case c.denial == Minimal:
		return c.newNSEC(predecessorName(name), successorBelow(name), []uint16{dns.TypeA})
	}
	return c.matchingRecord(name)
}

// matchingRecord returns the record of a name or a hash, or the one in whose span it lies.
func (c *Chain) matchingRecord(name string) dns.RR {
	compare := Compare
	if c.usesNSEC3() {
		compare = strings.Compare
	}
	if c.denial == Minimal {
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

func (c *Chain) newNSEC(owner, next string, types []uint16) dns.RR {
	types = append(slices.Clone(types), dns.TypeRRSIG, dns.TypeNSEC)
	if owner == c.zone {
		types = append(types, dns.TypeDNSKEY)
	}
	slices.Sort(types)
	return &dns.NSEC{Hdr: c.newHeader(owner, dns.TypeNSEC), NextDomain: next, TypeBitMap: types}
}

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
	if c.denial == NSEC3Out {
		flags = 1
	}
	return &dns.NSEC3{
		Hdr: c.newHeader(owner+"."+strings.TrimPrefix(c.zone, "."), dns.TypeNSEC3), Hash: dns.SHA1, Flags: flags, Iterations: c.hashing.Iterations,
		SaltLength: uint8(len(c.hashing.Salt) / 2), Salt: c.hashing.Salt, HashLength: 20, NextDomain: next, TypeBitMap: types,
	}
}

func (c *Chain) newHeader(owner string, t uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: t, Class: dns.ClassINET, Ttl: c.ttl}
}

// removeDuplicates leaves out records that are there already.
func removeDuplicates(all []dns.RR) (out []dns.RR) {
	for _, rr := range all {
		if !slices.ContainsFunc(out, func(o dns.RR) bool { return o.Header().Name == rr.Header().Name }) {
			out = append(out, rr)
		}
	}
	return out
}

// Compare compares names in lower case in canonical order (RFC 4034 §6.1).
func Compare(a, b string) int {
	return slices.CompareFunc(reversedLabels(a), reversedLabels(b), bytes.Compare)
}

// reversedLabels returns the labels of a name, the last first.
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

// parentName returns the name without its first label.
func parentName(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// predecessorName returns a name in front of one, and in front of it there is none that is likely to exist.
func predecessorName(name string) string {
	first := escapeFirstLabel(name)
	last := len(first) - len(`\000`)
	var b byte
	if _, err := fmt.Sscanf(first[last:], `\%d`, &b); err != nil || b == 0 {
		panic("signer: no name in front of " + name)
	}
	return fmt.Sprintf(`%s\%03d\255.%s`, first[:last], b-1, strings.TrimPrefix(parentName(name), "."))
}

// successorBelow returns a name that is behind one and all that is below it.
func successorBelow(name string) string {
	return escapeFirstLabel(name) + `\000.` + strings.TrimPrefix(parentName(name), ".")
}

// escapeFirstLabel returns the first label of a name with each byte as a number.
func escapeFirstLabel(name string) string {
	all := reversedLabels(name)
	text := ""
	for _, b := range all[len(all)-1] {
		text += fmt.Sprintf(`\%03d`, b)
	}
	return text
}

// nextName returns the name that is next after one.
func nextName(name string) string { return `\000.` + strings.TrimPrefix(name, ".") }
