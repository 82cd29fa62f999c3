package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A dnsScenario has questions to a Client, and servers with faults. A fault that ends does so before the final questions.
type dnsScenario struct {
	past    dnsWarmUp
	way     dnsNetwork
	client  dnsClient
	servers []*dnsServer
	asks    []*dnsQuestion // in the order of their times
	start   time.Duration  // when the past is over, and the calls begin
	end     time.Duration  // when all else is over, and the last questions are asked
}

// A dnsWarmUp is the questions before the calls.
type dnsWarmUp struct {
	calls  int
	gap    time.Duration
	broken bool // four names of a broken zone are asked for as well
}

// A dnsNetwork has the layers between the callers and the servers.
type dnsNetwork struct {
	net      string // "" is udp
	streams  int    // that a connection over HTTPS has; 0: many
	dials    string // "" upstreams have addresses; named, proxy: see dnsPlay.upstream
	files    string // "" no file of hosts; see dnsFiles
	by       string // "" is Upstreams; resolvConf, strict, fallback, exchanger, route, loop
	front    string // "" is ExchangeContext; serveDNS, udp, tcp, dial
	odd      bool   // an Exchanger's OPT records have bits of another response code
	change   string
	changeAt time.Duration // since the start of the play
	others   bool          // the Client that imports has the second half of the servers, and the one before it the first half
}

// A dnsClient has the settings of the Client.
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

// staleLimit returns the longest time for which an expired answer may be used.
func (c *dnsClient) staleLimit() time.Duration {
	if c.maxStale == 0 {
		return 24 * time.Hour
	}
	return max(0, c.maxStale)
}

// A dnsServer is a server with its faults.
type dnsServer struct {
	number int
	noTCP  bool
	lower  bool // it writes names in lower case
	noRoot bool // it refuses queries for the servers of the root
	stray  bool // another datagram comes before its first correct answer
	faults []*dnsFault
}

// A dnsFault is a fault of a server for some questions and some time.
type dnsFault struct {
	kind        string
	on          string // "" all questions; a type, zone, probe
	from, until time.Duration
}

// The kinds of faults: no answer, a failure, or an unusual answer.
var dnsFaults = []string{
	"silent", "silent", "drops1", "drops2", "half", "down", "down", "late1s", "late3s", "late7s", "closes",
	"servfail", "servfail", "refused", "prohibited", "notauth", "notimp", "blocked", "censored", "filtered", "bogus", "lame",
	"wrongID", "wrongName", "stray", "cut", "empty",
}

// matches reports whether the fault affects a question, at any time.
func (f *dnsFault) matches(k dnsQuestionKey) bool {
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

// isSilent reports whether the server sends no answer within a time.
func (f *dnsFault) isSilent(timeout time.Duration) bool {
	return f.answerDelay() > 0 && f.answerDelay() >= timeout || slices.Contains([]string{"silent", "empty", "wrongID", "wrongName"}, f.kind)
}

// losesQueries reports whether the first query for a question may be lost.
func (f *dnsFault) losesQueries() bool {
	return slices.Contains([]string{"drops1", "drops2", "half"}, f.kind)
}

// answerDelay returns the delay of the server's answers.
func (f *dnsFault) answerDelay() time.Duration {
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

// affectsAll reports whether the fault affects all questions of callers.
func (f *dnsFault) affectsAll() bool { return f.on == "" || f.kind == "down" }

// isActiveDuring reports whether the fault is active at a time between two times.
func (f *dnsFault) isActiveDuring(from, until time.Duration) bool {
	return f.from <= until && from <= f.until
}

// isFailure reports whether the server answers with a failure.
func (f *dnsFault) isFailure() bool {
	return f.isDecision() || slices.Contains([]string{"servfail", "refused", "prohibited", "notauth", "notimp", "lame"}, f.kind)
}

// endsConnections reports whether the server refuses connections, or closes them in place of an answer.
func (f *dnsFault) endsConnections() bool { return f.kind == "down" || f.kind == "closes" }

// isDecision reports whether the answer of the server is final for its name.
func (f *dnsFault) isDecision() bool { return f.isPolicy() || f.kind == "bogus" }

// isPolicy reports whether a policy of the server forbids the answer (RFC 8914 §4.16 to §4.18).
func (f *dnsFault) isPolicy() bool {
	return slices.Contains([]string{"blocked", "censored", "filtered"}, f.kind)
}

// A dnsQuestionKey has the properties of a question that determine the answer. Questions with the same key have the
// same answer.
type dnsQuestionKey struct {
	name       string // in lower case
	typ, class uint16
	do, cd     bool
	options    string // EDNS options that servers get
	opcode     int    // QUERY, UPDATE or NOTIFY
}

// isCacheable reports whether an answer to the question may be cached.
func (k dnsQuestionKey) isCacheable() bool {
	return k.opcode == dns.OpcodeQuery && k.class == dns.ClassINET && k.typ != dns.TypeANY && k.options == ""
}

func (k dnsQuestionKey) String() string {
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

// A dnsQuestion is a question that a caller asks.
type dnsQuestion struct {
	dnsQuestionKey
	what             string // past, call0, last
	at               time.Duration
	deadline, cancel time.Duration // since at; 0 and -1: none
	noRD, edns       bool
	upper            bool   // the name is written in upper case
	option           string // of EDNS, which the caller sends
	values           string // in the caller's context: off, nested, delay
}

func newDNSScenario(d *generator) *dnsScenario {
	w := &dnsScenario{way: newDNSNetwork(d), client: newDNSClient(d)}
	w.past = dnsWarmUp{calls: drawPart(d, "past.calls", .3, 8, 0, 30), gap: drawPart(d, "past.gap", .15, 50*ms, 0, 2*time.Second)}
	w.past.broken = drawFlag(d, "past.broken", .2)
	w.start = time.Duration(w.past.calls)*w.past.gap + 12*time.Second
	for i := range w.past.calls {
		w.asks = append(w.asks, &dnsQuestion{
			dnsQuestionKey: dnsQuestionKey{name: fmt.Sprintf("past%d.good.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "past",
			at: time.Duration(i)*w.past.gap + time.Duration(i)*130*time.Microsecond, cancel: -1,
		})
	}
	if w.past.broken {
		for i := range 4 {
			w.asks = append(w.asks, &dnsQuestion{
				dnsQuestionKey: dnsQuestionKey{name: fmt.Sprintf("broken%d.bad.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "past",
				at: w.start - 10*time.Second + time.Duration(i)*370*ms, cancel: -1,
			})
		}
	}
	w.way.changeAt += w.start
	n := drawPart(d, "servers", .7, 1, 2, 2, 3, 4)
	for i := range n {
		w.servers = append(w.servers, newDNSServer(d, i, w))
	}
	for i := range drawPart(d, "calls", .6, 1, 2, 3, 4, 5) {
		w.asks = append(w.asks, newDNSCall(d, i, w)...)
	}
	w.end = w.quietTime()
	w.addFinalQuestions()
	slices.SortStableFunc(w.asks, func(a, b *dnsQuestion) int { return int(a.at - b.at) })
	return w
}

// addFinalQuestions adds the questions after all calls: new ones, one of the warm-up, and those of the calls again. The
// Client has had the time to detect the return of servers.
func (w *dnsScenario) addFinalQuestions() {
	all := w.asks
	for i := range 10 {
		w.asks = append(w.asks, &dnsQuestion{
			dnsQuestionKey: dnsQuestionKey{name: fmt.Sprintf("last%d.good.example.", i), typ: dns.TypeA, class: dns.ClassINET}, what: "last",
			at: w.end + time.Duration(i)*(5*time.Second+170*time.Microsecond), cancel: -1,
		})
	}
	again := func(a *dnsQuestion, at time.Duration) {
		one := *a
		one.at, one.deadline, one.cancel, one.what = at, 0, -1, "again"
		w.asks = append(w.asks, &one)
	}
	if w.past.calls > 0 {
		again(all[0], w.end+time.Second)
	}
	known := make(map[dnsQuestionKey]bool)
	for _, a := range all {
		if strings.HasPrefix(a.what, "call") && !known[a.dnsQuestionKey] && len(known) < 6 {
			known[a.dnsQuestionKey] = true
			again(a, w.end+51*time.Second+time.Duration(len(known))*170*ms)
		}
	}
}

// quietTime returns a time some time after the end of all faults and calls.
func (w *dnsScenario) quietTime() time.Duration {
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

func newDNSNetwork(d *generator) dnsNetwork {
	y := dnsNetwork{
		net:   drawPart(d, "way.net", .25, "udp", "tcp", "tcp", "tls", "https", "https"),
		by:    drawPart(d, "way.by", .65, "", "resolvConf", "resolvConf", "fallback", "strict", "exchanger", "route", "loop"),
		front: drawPart(d, "way.front", .35, "", "serveDNS", "udp", "tcp", "dial"),
	}
	if y.by == "resolvConf" && drawFlag(d, "way.moves", .3) {
		y.change = "resolvConf"
	} else {
		y.change = drawPart(d, "way.change", .2, "", "import", "import", "off", "netdown", "netdown", "close")
	}
	if y.change != "" {
		y.changeAt = drawPart(d, "way.changeAt", .5, 700*ms, 20*ms, 5*time.Second, 20*time.Second) + 290*time.Microsecond
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
		y.dials = drawPart(d, "way.dials", .2, "", "named", "named", "proxy")
	}
	if y.net == "https" {
		y.streams = drawPart(d, "way.streams", .7, 0, 1, 2, 8)
	}
	y.files = newDNSFiles(d, y)
	if y.change == "import" && (y.by == "" || y.by == "strict") {
		y.others = drawFlag(d, "way.others", .5)
	}
	if y.by == "exchanger" || y.by == "route" {
		y.odd = drawFlag(d, "way.odd", .3)
	}
	return y
}

func newDNSClient(d *generator) dnsClient {
	c := dnsClient{
		hedge:   drawPart(d, "client.hedge", .35, "", "off", "off", "shadow", "30ms", "three"),
		timeout: drawPart(d, "client.timeout", .15, 5*time.Second, 2*time.Second, 10*time.Second),
		cache:   drawFlag(d, "client.cache", .6),
		trustAD: drawFlag(d, "client.trustAD", .1),
	}
	if c.cache {
		c.minTTL = drawPart(d, "client.minTTL", .08, 0, 20*time.Second)
		c.maxTTL = drawPart(d, "client.maxTTL", .12, 0, 30*time.Second)
		c.maxNegative = drawPart(d, "client.maxNegativeTTL", .12, 0, 5*time.Second)
		c.staleAfter = drawPart(d, "client.staleAfter", .12, 0, -1, 300*ms)
		c.maxStale = drawPart(d, "client.maxStale", .15, 0, -1, 10*time.Second)
		c.noRefresh = drawFlag(d, "client.noRefresh", .1)
	}
	return c
}

func newDNSServer(d *generator, i int, w *dnsScenario) *dnsServer {
	name := func(s string) string { return fmt.Sprintf("server%d.%s", i, s) }
	kind := drawPart(d, name("kind"), .3, "", "noTCP", "noTCP,lower", "lower", "noRoot", "noRoot")
	s := &dnsServer{number: i, noTCP: strings.Contains(kind, "noTCP"), lower: strings.Contains(kind, "lower"), noRoot: kind == "noRoot"}
	s.stray = drawFlag(d, name("stray"), .1)
	kinds := dnsFaults
	if w.way.net != "udp" { // some of the others need datagrams
		kinds = append(slices.Clone(kinds), "closes", "closes", "closes")
	}
	for n, odds := range []float64{.5, .2} {
		fault := func(s string) string { return name(fmt.Sprintf("fault%d.%s", n, s)) }
		f := &dnsFault{kind: drawPart(d, fault("kind"), odds, "", kinds...)}
		if f.kind == "" {
			continue
		}
		if f.kind != "down" {
			f.on = drawPart(d, fault("on"), .55, "", "AAAA", "HTTPS", "zone", "zone", "probe")
		}
		f.from = w.start + drawPart(d, fault("from"), .5, 0, -forever, -forever, 2*time.Second, 20*time.Second) - 370*time.Microsecond
		f.until = f.from + drawPart(d, fault("for"), .5, 2*forever, ms*300, 1*time.Second, 4*time.Second, 30*time.Second)
		if f.from < 0 {
			f.from, f.until = -forever, f.until+forever
		}
		s.faults = append(s.faults, f)
	}
	return s
}

// dnsNames are the names of questions, besides names of one caller alone.
var dnsNames = []string{
	"www.good.example.", "www.good.example.", "short.good.example.", "short.good.example.", "zero.good.example.", "alias.good.example.",
	"no.good.example.", "no.bad.example.", "db.no.good.example.", "db.no.good.example.", "v4.good.example.", "www.bad.example.", "short.bad.example.", "long.good.example.", "shortno.good.example.",
}

// dnsOptions are the options in the OPT record of a caller. Those with odd in their names are malformed.
var dnsOptions = []string{"subnet", "subnet", "subnet6", "subnetNone", "oddBits", "oddLength", "oddTwo", "cookie", "padding", "private"}

// newDNSCall returns the questions of a call: one, one several times at once, or several.
func newDNSCall(d *generator, i int, w *dnsScenario) (all []*dnsQuestion) {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	a := dnsQuestion{what: fmt.Sprintf("call%d", i)}
	a.class = dns.ClassINET
	a.at = w.start + drawPart(d, name("at"), .6, time.Duration(i)*10*time.Second, 0, 10*ms, 400*ms, 1500*ms, 7*time.Second, 25*time.Second, 50*time.Second, 400*time.Second)
	a.at += time.Duration(i) * 1130 * time.Microsecond
	names := dnsNames
	if w.client.cache { // the TTLs of cached answers matter
		names = append(slices.Clone(names), "short.good.example.", "short.good.example.", "short.bad.example.", "shortno.good.example.")
	}
	if strings.HasPrefix(w.way.files, "hosts") {
		names = append(slices.Clone(names), hostedName, hostedName, hostedName, hostedName)
	}
	a.name = drawPart(d, name("name"), .75, fmt.Sprintf("own%d.good.example.", i), names...)
	a.typ = dns.StringToType[drawPart(d, name("type"), .45, "A", "AAAA", "AAAA", "HTTPS", "TXT", "MX", "ANY")]
	if strings.HasPrefix(a.name, "long") {
		a.typ = dns.TypeTXT
	}
	a.deadline, a.cancel = drawCallerTimes(d, name)
	a.noRD = drawFlag(d, name("noRD"), .05)
	a.cd, a.do = drawFlag(d, name("cd"), .08), drawFlag(d, name("do"), .12)
	a.option = drawPart(d, name("option"), .15, "", dnsOptions...)
	a.values = drawPart(d, name("values"), .15, "", "off", "nested", "delay")
	a.edns = drawFlag(d, name("edns"), .3) || a.do || a.option != ""
	a.upper = drawFlag(d, name("upper"), .12)
	if drawFlag(d, name("chaos"), .06) {
		a.class = dns.ClassCHAOS
	}
	if opcode := dns.StringToOpcode[drawPart(d, name("opcode"), .15, "QUERY", "UPDATE", "NOTIFY")]; opcode != dns.OpcodeQuery {
		return []*dnsQuestion{a.withOpcode(opcode, i)}
	}
	a.options = a.forwardedOptions(w.way.front != "")
	return a.newBurst(drawPart(d, name("burst"), .45, "", "same5", "same5", "series4", "series12", "same3late", "many30", "mixed12", "repeat8", "repeat8", "repeat20", "repeat20"))
}

// newBurst returns the questions of a call with several questions.
func (a *dnsQuestion) newBurst(kind string) (all []*dnsQuestion) {
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
