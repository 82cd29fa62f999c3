package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A dnsWorld is what dnsPlay plays: questions to a Client, and servers with faults. A fault that ends does so in time for
// the questions that are asked when all else is over.
type dnsWorld struct {
	past    dnsPast
	way     dnsWay
	client  dnsClient
	servers []*dnsServer
	asks    []*dnsAsk     // in the order of their times
	start   time.Duration // when the past is over, and the calls begin
	end     time.Duration // when all else is over, and the last questions are asked
}

// A dnsPast is what the Client is asked before the calls.
type dnsPast struct {
	calls  int
	gap    time.Duration
	broken bool // four names of a broken zone are asked for as well
}

// A dnsWay is how questions get to the servers.
type dnsWay struct {
	net      string // "" is udp
	streams  int    // that a connection over HTTPS has; 0: many
	dials    string // "" upstreams have addresses; named, proxy: see dnsPlay.upstream
	files    string // "" no file of hosts; see dnsFiles
	by       string // "" is Upstreams; resolvConf, strict, fallback, exchanger, route, loop
	front    string // "" is ExchangeContext; serveDNS, udp, tcp, dial
	odd      bool   // an Exchanger's OPT records have bits of another response code
	change   string
	changeAt time.Duration // since the world began
	others   bool          // the Client that imports has the second half of the servers, and the one before it the first half
}

// A dnsClient is the Client's settings.
type dnsClient struct {
	hedge       string
	timeout     time.Duration
	cache       bool
	minTTL      time.Duration
	maxTTL      time.Duration
	maxNegative time.Duration
	staleAfter  time.Duration
	maxStale    time.Duration
	noRefresh   bool
	trustAD     bool
}

// stale is how long an answer may be given after it has expired.
func (c *dnsClient) stale() time.Duration {
	if c.maxStale == 0 {
		return 24 * time.Hour
	}
	return max(0, c.maxStale)
}

// A dnsServer is a server, and what is wrong with it.
type dnsServer struct {
	number int
	noTCP  bool
	lower  bool // it writes names in lower case
	noRoot bool // it refuses to say who serves the root
	stray  bool // another datagram comes before its first answer in the world that is as it should be
	faults []*dnsFault
}

// A dnsFault is what a server does to some questions for some time.
type dnsFault struct {
	kind        string
	on          string // "" all questions; a type, zone, probe
	from, until time.Duration
}

// Kinds of faults by what a server does: it does not answer, it answers with a failure, or it answers in another way.
var dnsFaults = []string{
	"silent", "silent", "drops1", "drops2", "half", "down", "down", "late1s", "late3s", "late7s", "closes",
	"servfail", "servfail", "refused", "prohibited", "notauth", "notimp", "blocked", "censored", "filtered", "bogus", "lame",
	"wrongID", "wrongName", "stray", "cut", "empty",
}

// matches reports whether the fault is one of a question, whenever that is asked.
func (f *dnsFault) matches(k dnsKey) bool {
	switch f.on {
	case "":
		return true
	case "probe":
		return k.name == "."
	case "zone":
		return strings.HasSuffix(k.name, ".bad.example.")
	}
	return dns.TypeToString[k.typ] == f.on
}

// mute reports whether nobody who waits for so long is answered.
func (f *dnsFault) mute(timeout time.Duration) bool {
	return f.delay() > 0 && f.delay() >= timeout || slices.Contains([]string{"silent", "empty", "wrongID", "wrongName"}, f.kind)
}

// lossy reports whether the first query for a question may be lost.
func (f *dnsFault) lossy() bool { return slices.Contains([]string{"drops1", "drops2", "half"}, f.kind) }

// delay is how late the server answers.
func (f *dnsFault) delay() time.Duration {
	switch f.kind {
	case "late1s":
		return time.Second
	case "late3s":
		return 3 * time.Second
	case "late7s":
		return 7 * time.Second
	}
	return 0
}

// total reports whether the fault is one of all questions of callers.
func (f *dnsFault) total() bool { return f.on == "" || f.kind == "down" }

// during reports whether the fault is there at some time of a span.
func (f *dnsFault) during(from, until time.Duration) bool { return f.from <= until && from <= f.until }

// failure reports whether the server answers, and what it says is a failure.
func (f *dnsFault) failure() bool {
	return f.decision() || slices.Contains([]string{"servfail", "refused", "prohibited", "notauth", "notimp", "lame"}, f.kind)
}

// ends reports whether the server refuses connections, or closes them instead of an answer.
func (f *dnsFault) ends() bool { return f.kind == "down" || f.kind == "closes" }

// decision reports whether what the server says is final for its name.
func (f *dnsFault) decision() bool { return f.policy() || f.kind == "bogus" }

// policy reports whether the server says that a policy forbids the answer (RFC 8914 §4.16 to §4.18).
func (f *dnsFault) policy() bool {
	return slices.Contains([]string{"blocked", "censored", "filtered"}, f.kind)
}

// A dnsKey tells questions with different answers apart.
type dnsKey struct {
	name       string // in lower case
	typ, class uint16
	do, cd     bool
	options    string // of EDNS, those that go on to the servers
	opcode     int    // QUERY, UPDATE or NOTIFY
}

// kept reports whether an answer to the question may be kept.
func (k dnsKey) kept() bool {
	return k.opcode == dns.OpcodeQuery && k.class == dns.ClassINET && k.typ != dns.TypeANY && k.options == ""
}

func (k dnsKey) String() string {
	s := k.name + " " + dns.TypeToString[k.typ]
	if k.do {
		s += " do"
	}
	if k.cd {
		s += " cd"
	}
	if k.class != dns.ClassINET {
		s += " " + dns.ClassToString[k.class]
	}
	if k.opcode != dns.OpcodeQuery {
		s += " " + dns.OpcodeToString[k.opcode]
	}
	return s + k.options
}

// A dnsAsk is a question that a caller has.
type dnsAsk struct {
	dnsKey
	what             string // past, call0, last
	at               time.Duration
	deadline, cancel time.Duration // since at; 0 and -1: none
	noRD, edns       bool
	upper            bool   // the name is written in upper case
	option           string // of EDNS, which the caller sends
	values           string // in the caller's context: off, nested, delay
}

func newDNSWorld(d *draw) *dnsWorld {
	w := &dnsWorld{way: newDNSWay(d), client: newDNSClient(d)}
	w.past = dnsPast{calls: pick(d, "past.calls", .3, 8, 0, 30), gap: pick(d, "past.gap", .15, 50*ms, 0, 2*time.Second)}
	w.past.broken = has(d, "past.broken", .2)
	w.start = time.Duration(w.past.calls)*w.past.gap + 12*time.Second
	for i := range w.past.calls {
		w.asks = append(w.asks, &dnsAsk{
			dnsKey: dnsKey{name: fmt.Sprintf("past%d.good.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "past",
			at: time.Duration(i)*w.past.gap + time.Duration(i)*130*time.Microsecond, cancel: -1,
		})
	}
	if w.past.broken {
		for i := range 4 {
			w.asks = append(w.asks, &dnsAsk{
				dnsKey: dnsKey{name: fmt.Sprintf("broken%d.bad.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "past",
				at: w.start - 10*time.Second + time.Duration(i)*370*ms, cancel: -1,
			})
		}
	}
	w.way.changeAt += w.start
	n := pick(d, "servers", .7, 1, 2, 2, 3, 4)
	for i := range n {
		w.servers = append(w.servers, newDNSServer(d, i, w))
	}
	for i := range pick(d, "calls", .6, 1, 2, 3, 4, 5) {
		w.asks = append(w.asks, newDNSCall(d, i, w)...)
	}
	w.end = w.last()
	w.afterwards()
	slices.SortStableFunc(w.asks, func(a, b *dnsAsk) int { return int(a.at - b.at) })
	return w
}

// afterwards adds the questions that are asked when all else is over: new ones, one of the past, and those of calls once more,
// when the Client has had the time to find out that servers are back.
func (w *dnsWorld) afterwards() {
	all := w.asks
	for i := range 10 {
		w.asks = append(w.asks, &dnsAsk{
			dnsKey: dnsKey{name: fmt.Sprintf("last%d.good.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "last",
			at: w.end + time.Duration(i)*(5*time.Second+170*time.Microsecond), cancel: -1,
		})
	}
	again := func(a *dnsAsk, at time.Duration) {
		one := *a
		one.at, one.deadline, one.cancel, one.what = at, 0, -1, "again"
		w.asks = append(w.asks, &one)
	}
	if w.past.calls > 0 {
		again(all[0], w.end+time.Second)
	}
	known := make(map[dnsKey]bool)
	for _, a := range all {
		if strings.HasPrefix(a.what, "call") && !known[a.dnsKey] && len(known) < 6 {
			known[a.dnsKey] = true
			again(a, w.end+51*time.Second+time.Duration(len(known))*170*ms)
		}
	}
}

// last returns when everything that ends has ended for some time.
func (w *dnsWorld) last() time.Duration {
	end := w.start
	for _, a := range w.asks {
		end = max(end, a.at)
	}
	for _, s := range w.servers {
		for _, f := range s.faults {
			if f.until < forever {
				end = max(end, f.until)
			}
		}
	}
	return max(end, w.way.changeAt) + 20*time.Second + 510*time.Microsecond
}

func newDNSWay(d *draw) dnsWay {
	y := dnsWay{
		net:   pick(d, "way.net", .25, "udp", "tcp", "tcp", "tls", "https", "https"),
		by:    pick(d, "way.by", .65, "", "resolvConf", "resolvConf", "fallback", "strict", "exchanger", "route", "loop"),
		front: pick(d, "way.front", .35, "", "serveDNS", "udp", "tcp", "dial"),
	}
	if y.by == "resolvConf" && has(d, "way.moves", .3) {
		y.change = "resolvConf"
	} else {
		y.change = pick(d, "way.change", .2, "", "import", "import", "off", "netdown", "netdown", "close")
	}
	if y.change != "" {
		y.changeAt = pick(d, "way.changeAt", .5, 700*ms, 20*ms, 5*time.Second, 20*time.Second) + 290*time.Microsecond
	}
	if y.by == "resolvConf" && y.net != "udp" {
		y.net = "udp"
	}
	if y.change == "import" && y.front != "" || y.by == "loop" {
		y.change = ""
	}
	if y.by == "loop" {
		y.front, y.net = "udp", "udp"
	} else if y.by != "resolvConf" {
		y.dials = pick(d, "way.dials", .2, "", "named", "named", "proxy")
	}
	if y.net == "https" {
		y.streams = pick(d, "way.streams", .7, 0, 1, 2, 8)
	}
	y.files = newDNSFiles(d, y)
	if y.change == "import" && (y.by == "" || y.by == "strict") {
		y.others = has(d, "way.others", .5)
	}
	if y.by == "exchanger" || y.by == "route" {
		y.odd = has(d, "way.odd", .3)
	}
	return y
}

func newDNSClient(d *draw) dnsClient {
	c := dnsClient{
		hedge:   pick(d, "client.hedge", .35, "", "off", "off", "shadow", "30ms", "three"),
		timeout: pick(d, "client.timeout", .15, 5*time.Second, 2*time.Second, 10*time.Second),
		cache:   has(d, "client.cache", .6),
		trustAD: has(d, "client.trustAD", .1),
	}
	if c.cache {
		c.minTTL = pick(d, "client.minTTL", .08, 0, 20*time.Second)
		c.maxTTL = pick(d, "client.maxTTL", .12, 0, 30*time.Second)
		c.maxNegative = pick(d, "client.maxNegativeTTL", .12, 0, 5*time.Second)
		c.staleAfter = pick(d, "client.staleAfter", .12, 0, -1, 300*ms)
		c.maxStale = pick(d, "client.maxStale", .15, 0, -1, 10*time.Second)
		c.noRefresh = has(d, "client.noRefresh", .1)
	}
	return c
}

func newDNSServer(d *draw, i int, w *dnsWorld) *dnsServer {
	name := func(s string) string { return fmt.Sprintf("server%d.%s", i, s) }
	kind := pick(d, name("kind"), .3, "", "noTCP", "noTCP,lower", "lower", "noRoot", "noRoot")
	s := &dnsServer{number: i, noTCP: strings.Contains(kind, "noTCP"), lower: strings.Contains(kind, "lower"), noRoot: kind == "noRoot"}
	s.stray = has(d, name("stray"), .1)
	kinds := dnsFaults
	if w.way.net != "udp" { // some of the others need datagrams
		kinds = append(slices.Clone(kinds), "closes", "closes", "closes")
	}
	for n, odds := range []float64{.5, .2} {
		fault := func(s string) string { return name(fmt.Sprintf("fault%d.%s", n, s)) }
		f := &dnsFault{kind: pick(d, fault("kind"), odds, "", kinds...)}
		if f.kind == "" {
			continue
		}
		if f.kind != "down" {
			f.on = pick(d, fault("on"), .55, "", "AAAA", "HTTPS", "zone", "zone", "probe")
		}
		f.from = w.start + pick(d, fault("from"), .5, 0, -forever, -forever, 2*time.Second, 20*time.Second) - 370*time.Microsecond
		f.until = f.from + pick(d, fault("for"), .5, 2*forever, ms*300, 1*time.Second, 4*time.Second, 30*time.Second)
		if f.from < 0 {
			f.from, f.until = -forever, f.until+forever
		}
		s.faults = append(s.faults, f)
	}
	return s
}

// dnsNames are what callers ask for, beside names of their own.
var dnsNames = []string{
	"www.good.example.", "www.good.example.", "short.good.example.", "short.good.example.", "zero.good.example.", "alias.good.example.",
	"no.good.example.", "no.bad.example.", "db.no.good.example.", "db.no.good.example.", "v4.good.example.", "www.bad.example.", "short.bad.example.", "long.good.example.", "shortno.good.example.",
}

// dnsOptions are what a caller's OPT record has. What odd ones are is malformed.
var dnsOptions = []string{"subnet", "subnet", "subnet6", "subnetNone", "oddBits", "oddLength", "oddTwo", "cookie", "padding", "private"}

// newDNSCall returns the questions of a call: one, the same several times at once, or several.
func newDNSCall(d *draw, i int, w *dnsWorld) (all []*dnsAsk) {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	a := dnsAsk{what: fmt.Sprintf("call%d", i)}
	a.class = dns.ClassINET
	a.at = w.start + pick(d, name("at"), .6, time.Duration(i)*10*time.Second, 0, 10*ms, 400*ms, 1500*ms, 7*time.Second, 25*time.Second, 50*time.Second, 400*time.Second)
	a.at += time.Duration(i) * 1130 * time.Microsecond
	names := dnsNames
	if w.client.cache { // which matters for those that are kept and expire
		names = append(slices.Clone(names), "short.good.example.", "short.good.example.", "short.bad.example.", "shortno.good.example.")
	}
	if strings.HasPrefix(w.way.files, "hosts") {
		names = append(slices.Clone(names), hostedName, hostedName, hostedName, hostedName)
	}
	a.name = pick(d, name("name"), .75, fmt.Sprintf("own%d.good.example.", i), names...)
	a.typ = dns.StringToType[pick(d, name("type"), .45, "A", "AAAA", "AAAA", "HTTPS", "TXT", "MX", "ANY")]
	if strings.HasPrefix(a.name, "long") {
		a.typ = dns.TypeTXT
	}
	a.deadline, a.cancel = newTimes(d, name)
	a.noRD = has(d, name("noRD"), .05)
	a.cd, a.do = has(d, name("cd"), .08), has(d, name("do"), .12)
	a.option = pick(d, name("option"), .15, "", dnsOptions...)
	a.values = pick(d, name("values"), .15, "", "off", "nested", "delay")
	a.edns = has(d, name("edns"), .3) || a.do || a.option != ""
	a.upper = has(d, name("upper"), .12)
	if has(d, name("chaos"), .06) {
		a.class = dns.ClassCHAOS
	}
	if opcode := dns.StringToOpcode[pick(d, name("opcode"), .15, "QUERY", "UPDATE", "NOTIFY")]; opcode != dns.OpcodeQuery {
		return []*dnsAsk{a.withOpcode(opcode, i)}
	}
	a.options = a.passed(w.way.front != "")
	return a.burst(pick(d, name("burst"), .45, "", "same5", "same5", "series4", "series12", "same3late", "many30", "mixed12", "repeat8", "repeat8", "repeat20", "repeat20"))
}

// burst returns the questions of a call that is not one question alone.
func (a *dnsAsk) burst(kind string) (all []*dnsAsk) {
	number, gap, other, types := 1, time.Duration(0), false, []uint16{a.typ}
	switch kind {
	case "same5":
		number = 5
	case "same3late":
		number, gap = 3, 45*ms+170*time.Microsecond
	case "repeat8":
		number, gap = 8, time.Second+170*time.Microsecond
	case "repeat20":
		number, gap = 20, 7*time.Second+170*time.Microsecond
	case "series4":
		number, gap, other = 4, 110*ms+130*time.Microsecond, true
	case "series12":
		number, gap, other = 12, time.Second+130*time.Microsecond, true
	case "many30":
		number, gap, other = 30, 7*ms+130*time.Microsecond, true
	case "mixed12": // as the questions of a browser
		number, gap, other, types = 12, 3*ms+130*time.Microsecond, true, []uint16{a.typ, dns.TypeA, dns.TypeAAAA, dns.TypeHTTPS}
	}
	for n := range number {
		one := *a
		one.at += time.Duration(n) * gap
		one.typ = types[n%len(types)]
		if other && n > 0 {
			first, zone, _ := strings.Cut(a.name, ".")
			one.name = fmt.Sprintf("%s%d.%s", first, n, zone)
		}
		all = append(all, &one)
	}
	return all
}
