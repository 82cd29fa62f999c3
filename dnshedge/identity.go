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

// An identifier is an Exchanger whose Identity names the servers that it asks, and its changes to their answers.
// Exchangers of one type with the same Identity give the same answers. An empty Identity is an unknown one.
type identifier interface{ Identity() string }

// maxIdentifying is how many calls of Client.Identity may be under way, so that Clients that refer to each other end.
const maxIdentifying = 32

// Identity returns a string that names the Client's servers or Exchanger, its routes, its filter and all else that answers come
// from: Clients with the same string give the same answers. It is empty if that is not known, as for an Exchanger without a
// method Identity() string. Import compares such strings.
func (c *Client) Identity() string {
	core, err := c.getCore()
	if err != nil {
		return ""
	}
	defer core.identifying.Add(-1)
	if core.identifying.Add(1) > maxIdentifying {
		return ""
	}
	sources := core.currentSources(time.Now())
	parts := []string{"Client", sources.own, c.Hosts, fmt.Sprint(c.SpecialUse)}
	for _, domain := range slices.Sorted(maps.Keys(sources.routes)) {
		parts = append(parts, domain, sources.routes[domain])
	}
	if sources.own == "" || slices.Contains(slices.Collect(maps.Values(sources.routes)), "") {
		return ""
	}
	return hashIdentity(parts...)
}

// hashIdentity returns a short string for a list of strings.
func hashIdentity(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(decode.AppendBytes(nil, p))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// identityOf returns a hash of the type of an Exchanger and of its Identity, or "" if it is no identifier or its Identity is empty.
func identityOf(e Exchanger) (identity string) {
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

// answerSources are the identities of the servers and Exchangers that a Client's answers come from. An empty identity is an unknown one.
type answerSources struct {
	own    string            // of the servers for all names, or of the Exchanger, with the filter
	routes map[string]string // by domain, in wire format and lower case
}

// currentSources returns where answers come from now.
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
	case s.exchanger != nil:
		all.own = identityOf(s.exchanger)
	case s.system != nil:
		all.own = c.identityOfSystem(now, all.routes)
	default:
		all.own = hashIdentity("upstreams", c.identityOfUpstreams(c.conf.Upstreams))
	}
	if all.own != "" {
		all.own = hashIdentity(all.own, c.identityOfUpstreams(c.conf.Fallback), filter)
	}
	for domain, e := range s.routes.exchangers {
		if all.routes[domain] = all.own; e != nil {
			all.routes[domain] = identityOf(e)
		}
	}
	return all
}

// identityOfUpstreams returns the identity of a group of servers. Their order counts if the first is asked first.
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

// identityOfSystem returns the identity of the system's servers for all names. It adds the system's servers for single
// domains to routes.
func (c *core) identityOfSystem(now time.Time, routes map[string]string) string {
	named, err := c.servers.system.DefaultServers(now)
	if err != nil || named == nil {
		return ""
	}
	for domain, servers := range c.servers.system.Domains(now) {
		routes[domain] = hashIdentity("system", fmt.Sprint(servers))
	}
	return hashIdentity("system", fmt.Sprint(named))
}

// sourceIndex returns the identity of the source of answers to q: of the route for the last domain bytes of its name in wire format, or of the
// Client's own servers if domain is 0.
func (s answerSources) sourceIndex(q *wire.Query, domain int) string {
	if domain == 0 {
		return s.own
	}
	var buf [wire.MaxKey]byte
	name := q.AppendKey(buf[:0])[:len(q.Name)] // in lower case
	if domain > len(name) {
		return ""
	}
	return s.routes[string(name[len(name)-domain:])]
}

// appendTo appends the sources for an export.
func (s answerSources) appendTo(b []byte) []byte {
	own := decode.AppendBytes(nil, s.own)
	own = binary.AppendUvarint(own, uint64(len(s.routes)))
	for _, domain := range slices.Sorted(maps.Keys(s.routes)) {
		own = decode.AppendBytes(decode.AppendBytes(own, domain), s.routes[domain])
	}
	return decode.AppendBytes(b, own)
}

// decodeSources reads the bytes that append wrote. Sources from any other bytes are unknown.
func decodeSources(b []byte) answerSources {
	d := decode.Decoder(b)
	s := answerSources{own: string(d.Bytes(uint64(len(b)))), routes: make(map[string]string)}
	for n := d.Uvarint(); n > 0 && d != nil; n-- {
		domain := string(d.Bytes(uint64(len(b))))
		s.routes[domain] = string(d.Bytes(uint64(len(b))))
	}
	if d == nil || len(d) > 0 {
		return answerSources{}
	}
	return s
}
