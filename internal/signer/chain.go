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
	zone    string
	how     Denial
	hashing Hashing
	ttl     uint32
	types   map[string][]uint16 // of all names that are in the chain; nil: something is below them
	order   []string            // names, or hashes
	named   map[string]string   // names by their hash
}

// NewChain returns the chain of a zone. The types are those of all names that it has, in lower case, without those that come
// by signing; a delegation has NS and perhaps DS, and what is below it is not the zone's.
func NewChain(zone string, how Denial, h Hashing, ttl uint32, types map[string][]uint16) *Chain {
	c := &Chain{zone: zone, how: how, hashing: h, ttl: ttl, types: make(map[string][]uint16), named: make(map[string]string)}
	for name, all := range types {
		if how == NSEC3Out && name != zone && slices.Equal(all, []uint16{dns.TypeNS}) {
			continue
		}
		c.types[name] = all
		for above := up(name); name != zone && above != zone; above = up(above) {
			if _, ok := types[above]; !ok {
				c.types[above] = nil
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.types), Compare) {
		if how == NSEC3 || how == NSEC3Out {
			hash := c.hash(name)
			c.named[hash] = name
			c.order = append(c.order, hash)
		} else if c.types[name] != nil {
			c.order = append(c.order, name)
		}
	}
	if len(c.named) > 0 {
		slices.Sort(c.order)
	}
	return c
}

// NoData proves that a name, or the one that is above all names like it, has no records of a type.
func (c *Chain) NoData(name string) []dns.RR {
	if _, ok := c.types[name]; !ok {
		return c.NoCloser(name) // a delegation that is opted out
	}
	if c.hashed() {
		return []dns.RR{c.record(c.hash(name))}
	}
	return []dns.RR{c.record(name)}
}

// NoName proves that there is no such name, nor a wildcard that it could be made of.
func (c *Chain) NoName(name string) []dns.RR {
	above, _ := c.closest(name)
	return distinct(append(c.NoCloser(name), c.covers("*."+strings.TrimPrefix(above, "."))))
}

// NoCloser proves that a name does not exist, and nothing that is closer to it than the closest name that does: for answers
// made of wildcards, which need the name below alone, and delegations that are opted out.
func (c *Chain) NoCloser(name string) []dns.RR {
	above, next := c.closest(name)
	if c.hashed() {
		return distinct([]dns.RR{c.record(c.hash(above)), c.covers(next)})
	}
	return []dns.RR{c.covers(next)}
}

// NoWildcardData proves that the wildcard of which a name is made has no records of a type.
func (c *Chain) NoWildcardData(name string) []dns.RR {
	above, _ := c.closest(name)
	return distinct(append(c.NoCloser(name), c.NoData("*."+strings.TrimPrefix(above, "."))...))
}

// Len returns how many records the chain has; those that are minimal have no chain.
func (c *Chain) Len() int { return len(c.order) }

func (c *Chain) hashed() bool { return c.how == NSEC3 || c.how == NSEC3Out }

func (c *Chain) hash(name string) string {
	return strings.ToLower(dns.HashName(name, dns.SHA1, c.hashing.Iterations, c.hashing.Salt))
}

// closest returns the closest name above one that exists, and the one below that.
func (c *Chain) closest(name string) (above, next string) {
	for above = name; ; above = up(above) {
		if _, ok := c.types[above]; ok || above == "." {
			return above, next
		}
		next = above
	}
}

// covers returns the record in whose span a name lies that does not exist.
func (c *Chain) covers(name string) dns.RR {
	switch {
	case c.hashed():
		return c.record(c.hash(name))
	case c.how == Minimal:
		return c.nsec(before(name), beyond(name), []uint16{dns.TypeA})
	}
	return c.record(name)
}

// record returns the record of a name or a hash, or the one in whose span it lies.
func (c *Chain) record(name string) dns.RR {
	compare := Compare
	if c.hashed() {
		compare = strings.Compare
	}
	if c.how == Minimal {
		return c.nsec(name, behind(name), c.types[name])
	}
	i := sort.Search(len(c.order), func(i int) bool { return compare(c.order[i], name) > 0 }) - 1
	if i < 0 {
		i = len(c.order) - 1
	}
	owner, next := c.order[i], c.order[(i+1)%len(c.order)]
	if c.hashed() {
		return c.nsec3(owner, next, c.types[c.named[owner]])
	}
	return c.nsec(owner, next, c.types[owner])
}

func (c *Chain) nsec(owner, next string, types []uint16) dns.RR {
	types = append(slices.Clone(types), dns.TypeRRSIG, dns.TypeNSEC)
	if owner == c.zone {
		types = append(types, dns.TypeDNSKEY)
	}
	slices.Sort(types)
	return &dns.NSEC{Hdr: c.header(owner, dns.TypeNSEC), NextDomain: next, TypeBitMap: types}
}

func (c *Chain) nsec3(owner, next string, types []uint16) dns.RR {
	types = slices.Clone(types)
	if delegates := slices.Contains(types, dns.TypeNS) && !slices.Contains(types, dns.TypeSOA); len(types) > 0 && (!delegates || slices.Contains(types, dns.TypeDS)) {
		types = append(types, dns.TypeRRSIG)
	}
	if c.named[owner] == c.zone {
		types = append(types, dns.TypeDNSKEY)
	}
	slices.Sort(types)
	var flags uint8
	if c.how == NSEC3Out {
		flags = 1
	}
	return &dns.NSEC3{
		Hdr: c.header(owner+"."+strings.TrimPrefix(c.zone, "."), dns.TypeNSEC3), Hash: dns.SHA1, Flags: flags, Iterations: c.hashing.Iterations,
		SaltLength: uint8(len(c.hashing.Salt) / 2), Salt: c.hashing.Salt, HashLength: 20, NextDomain: next, TypeBitMap: types,
	}
}

func (c *Chain) header(owner string, t uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: t, Class: dns.ClassINET, Ttl: c.ttl}
}

// distinct leaves out records that are there already.
func distinct(all []dns.RR) (out []dns.RR) {
	for _, rr := range all {
		if !slices.ContainsFunc(out, func(o dns.RR) bool { return o.Header().Name == rr.Header().Name }) {
			out = append(out, rr)
		}
	}
	return out
}

// Compare compares names in lower case in canonical order (RFC 4034 §6.1).
func Compare(a, b string) int { return slices.CompareFunc(labels(a), labels(b), bytes.Compare) }

// labels returns the labels of a name, the last first.
func labels(name string) (all [][]byte) {
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

// up returns the name without its first label.
func up(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// before returns a name in front of one, and in front of it there is none that is likely to exist.
func before(name string) string {
	first := escaped(name)
	last := len(first) - len(`\000`)
	var b byte
	if _, err := fmt.Sscanf(first[last:], `\%d`, &b); err != nil || b == 0 {
		panic("signer: no name in front of " + name)
	}
	return fmt.Sprintf(`%s\%03d\255.%s`, first[:last], b-1, strings.TrimPrefix(up(name), "."))
}

// beyond returns a name that is behind one and all that is below it.
func beyond(name string) string { return escaped(name) + `\000.` + strings.TrimPrefix(up(name), ".") }

// escaped returns the first label of a name with each byte as a number.
func escaped(name string) string {
	all := labels(name)
	text := ""
	for _, b := range all[len(all)-1] {
		text += fmt.Sprintf(`\%03d`, b)
	}
	return text
}

// behind returns the name that is next after one.
func behind(name string) string { return `\000.` + strings.TrimPrefix(name, ".") }
