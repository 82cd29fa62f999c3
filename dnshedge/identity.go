package dnshedge

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/decode"
)

// An identifier is an Exchanger with a method Identity, which returns a string that identifies the source of its
// answers. Exchangers of the same type with the same string give the same answers. An empty string means that the
// source is unknown.
type identifier interface{ Identity() string }

// maxIdentifying limits the running calls of Client.Identity for one Client. Otherwise they would not end if Clients
// refer to each other through Exchangers without a method Unwrap, which isInLoop does not find. Concurrent calls count
// as well as nested ones, so the limit is high.
const maxIdentifying = 1000

// Identity returns a string that represents the sources of the Client's answers: its servers or Exchanger, Routes,
// RebindFilter, Hosts and SpecialUse. Clients with the same non-empty Identity give the same answers. The string is
// empty if a source is unknown, for example an Exchanger without a method Identity() string. It is also empty if a
// field is invalid, or if Clients refer to each other.
func (c *Client) Identity() string {
	core, err := c.getCore()
	if err != nil || core.isInLoop() {
		return ""
	}
	defer core.identifying.Add(-1)
	if core.identifying.Add(1) > maxIdentifying {
		return ""
	}
	sources := core.currentSources(time.Now())
	parts := []string{"Client", sources.defaultSource, c.Hosts, fmt.Sprint(c.SpecialUse)}
	for _, domain := range slices.Sorted(maps.Keys(sources.routes)) {
		parts = append(parts, domain, sources.routes[domain])
	}
	if sources.defaultSource == "" || slices.Contains(slices.Collect(maps.Values(sources.routes)), "") {
		return ""
	}
	return hashIdentity(parts...)
}

// hashIdentity returns a hash of a list of strings, as 32 hexadecimal digits. Lists with equal strings in the same
// order have the same hash.
func hashIdentity(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(decode.AppendBytes(nil, p))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// identifyExchanger returns a string that identifies an Exchanger in an export: a hash of its type and its Identity. It
// returns "" if the Exchanger has no method Identity, or if the method returns "".
func identifyExchanger(e Exchanger) (identity string) {
	known, ok := e.(identifier)
	if !ok {
		return ""
	}
	usercode.RunGuarded(func() { identity = known.Identity() })
	if identity == "" {
		return ""
	}
	return hashIdentity(fmt.Sprintf("%T", e), identity)
}

// An answerSources identifies the servers and Exchangers that a Client queries, by strings that can be compared with
// those in an export. An empty string is an unknown source, whose answers are not imported.
type answerSources struct {
	defaultSource string            // of the Exchanger or the servers for all names, and of the RebindFilter
	routes        map[string]string // by the route's domain, in wire format and lower case
}

// currentSources returns strings that identify the servers and Exchangers that the Client asks at the time now. Export
// writes them, and Import compares them, because answers of other servers are not imported.
func (c *core) currentSources(now time.Time) answerSources {
	s := c.servers
	filter := ""
	if f := c.conf.RebindFilter; f != nil {
		allow := make([]string, len(f.Allow))
		for i, name := range f.Allow {
			allow[i] = strings.ToLower(strings.TrimSuffix(name, "."))
		}
		slices.Sort(allow)
		filter = fmt.Sprintf("without private addresses but in %q", slices.Compact(allow))
	}
	all := answerSources{routes: make(map[string]string)}
	switch {
	case s.conf.Exchanger != nil:
		all.defaultSource = identifyExchanger(s.conf.Exchanger)
	case s.system != nil:
		all.defaultSource = c.systemIdentity(now, all.routes)
	default:
		all.defaultSource = hashIdentity("upstreams", c.identityOfUpstreams(c.conf.Upstreams))
	}
	if all.defaultSource != "" {
		all.defaultSource = hashIdentity(all.defaultSource, c.identityOfUpstreams(c.conf.Fallback), filter)
	}
	for domain, e := range s.routes {
		if all.routes[domain] = all.defaultSource; e != nil {
			all.routes[domain] = identifyExchanger(e)
		}
	}
	return all
}

// identityOfUpstreams returns a string that is equal for equal lists of servers, so that Import can compare them. The
// order of the servers counts only if it determines which server is asked first (OrderStrict).
func (c *core) identityOfUpstreams(ups []Upstream) string {
	keys := make([]string, len(ups))
	for i, up := range ups {
		keys[i] = up.identityKey()
		if conf := c.conf.TLSConfig; conf != nil && conf.InsecureSkipVerify {
			keys[i] += " not verified"
		}
	}
	if !c.servers.isStrict() {
		slices.Sort(keys)
	}
	return hashIdentity(slices.Compact(keys)...)
}

// systemIdentity returns a string that identifies the operating system's default DNS servers, or "" if they cannot be
// read. For each domain with servers of its own, it adds the string of these servers to routes, by the domain in wire
// format and lower case.
func (c *core) systemIdentity(now time.Time, routes map[string]string) string {
	defaultServers, err := c.servers.system.DefaultServers(now)
	if err != nil || defaultServers == nil {
		return ""
	}
	for domain, servers := range c.servers.system.Domains(now) {
		routes[domain] = hashIdentity("system", fmt.Sprint(servers))
	}
	return hashIdentity("system", fmt.Sprint(defaultServers))
}

// identityFor returns the string that identifies the servers or Exchanger for the question q, or "" if they are
// unknown. domainLen is the length of the domain of q's route, in wire format. 0 stands for the default servers.
func (s answerSources) identityFor(q *wire.Query, domainLen int) string {
	if domainLen == 0 {
		return s.defaultSource
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	if domainLen > len(name) {
		return ""
	}
	return s.routes[string(name[len(name)-domainLen:])]
}

// appendSources appends s in the format of Client.Export to b, and returns the extended slice. decodeSources decodes it.
func (s answerSources) appendSources(b []byte) []byte {
	own := decode.AppendBytes(nil, s.defaultSource)
	own = binary.AppendUvarint(own, uint64(len(s.routes)))
	for _, domain := range slices.Sorted(maps.Keys(s.routes)) {
		own = decode.AppendBytes(decode.AppendBytes(own, domain), s.routes[domain])
	}
	return decode.AppendBytes(b, own)
}

// decodeSources decodes the output of appendSources: the servers and Exchangers of the Client that wrote an export. If
// b is damaged, all sources in the result are unknown, so that no answers of servers are imported.
func decodeSources(b []byte) answerSources {
	d := decode.Decoder(b)
	s := answerSources{defaultSource: string(d.Bytes(uint64(len(b)))), routes: make(map[string]string)}
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		domain := string(d.Bytes(uint64(len(b))))
		s.routes[domain] = string(d.Bytes(uint64(len(b))))
	}
	if d == nil || len(d) > 0 {
		return answerSources{}
	}
	return s
}
