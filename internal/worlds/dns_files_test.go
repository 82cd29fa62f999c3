package worlds_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// dnsFiles are the kinds of files that a Client reads: a file of hosts, or resolv.conf. A late file cannot be read at
// first. A file that breaks is a directory for a time. A file of hosts that moves has another address after that.
var dnsFiles = []string{"hosts", "hostsLate", "hostsBreaks", "hostsMoves"}

// newDNSFiles draws the file that a Client reads and its fault.
func newDNSFiles(d *generator, y dnsNetwork) string {
	kinds := dnsFiles
	if y.front == "udp" || y.front == "tcp" { // a Server does not begin to serve until its file can be read
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return kind == "hostsLate" })
	}
	switch {
	case y.change != "" || y.by == "loop":
		return ""
	case y.by == "resolvConf":
		kinds = append(slices.Clone(kinds), "confLate", "confBreaks", "confBreaks")
	}
	return drawPart(d, "way.files", .2, "", kinds...)
}

const (
	hostedName  = "hosted.good.example." // which the file of hosts has
	fileLate    = 4*time.Second + 410*time.Microsecond
	fileBreaks  = 2*time.Second + 410*time.Microsecond // since the calls began
	fileBroken  = 12 * time.Second
	fileNoticed = 6 * time.Second // after which a change of a file counts
)

// hostedAt returns the address of hostedName at a time.
func (w *dnsScenario) hostedAt(at time.Duration) string {
	if w.way.files == "hostsMoves" && at >= w.start+fileBreaks {
		return "192.0.2.78"
	}
	return "192.0.2.77"
}

// mayBeUnread reports whether the Client may not have read its file at the start of a question.
func (w *dnsScenario) mayBeUnread(r *dnsResult) bool {
	broken := w.start + fileBreaks
	unknown := w.past.calls == 0 && strings.HasSuffix(w.way.files, "Breaks") // a Client reads when it is first used
	return strings.HasSuffix(w.way.files, "Late") && r.began < fileLate+timeTolerance || unknown && r.end >= broken-timeTolerance && r.began < broken+fileBroken+timeTolerance
}

// updateFiles writes the file of hosts, and changes and breaks files at their times.
func (p *dnsPlay) updateFiles() {
	write, path := p.writeHosts, filepath.Join(p.dir, "hosts")
	if strings.HasPrefix(p.w.way.files, "conf") {
		write, path = p.writeConf, filepath.Join(p.dir, "resolv.conf")
	}
	fail := func() {
		_ = os.Remove(path)
		if err := os.Mkdir(path, 0o700); err != nil {
			panic(err)
		}
	}
	mend := func() {
		_ = os.Remove(path)
		write()
	}
	broken := p.w.start + fileBreaks
	switch p.w.way.files {
	case "":
	case "hostsLate", "confLate":
		fail()
		time.AfterFunc(fileLate, mend)
	case "hostsBreaks", "confBreaks":
		write()
		time.AfterFunc(broken, fail)
		time.AfterFunc(broken+fileBroken, mend)
	case "hostsMoves":
		write()
		time.AfterFunc(broken, write)
	default:
		write()
	}
}

// writeHosts writes the file of hosts.
func (p *dnsPlay) writeHosts() {
	path := filepath.Join(p.dir, "hosts")
	if err := os.WriteFile(path, []byte(p.w.hostedAt(p.since())+" "+hostedName+"\n"), 0o600); err != nil {
		panic(err)
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		panic(err)
	}
}

// isHosted reports whether the file of hosts answers a question.
func (w *dnsScenario) isHosted(a *dnsQuestion) bool {
	local := a.typ == dns.TypeA || a.typ == dns.TypeAAAA || a.typ == dns.TypeHTTPS || a.typ == dns.TypeANY
	return strings.HasPrefix(w.way.files, "hosts") && a.name == hostedName && a.class == dns.ClassINET && local && !(w.way.front != "" && a.isMalformed())
}

// checkHosted checks the answer of a question that the file of hosts answers: the last address in the file, at once,
// without a query.
func (j *dnsChecker) checkHosted(a *dnsQuestion, r *dnsResult) {
	say := func(what string) {
		j.add("1 hosts", "%s %v at %v: %s; client %v", a.what, a.dnsQuestionKey, a.at, what, r)
	}
	for _, q := range j.client.seen {
		if q.key.name == hostedName && q.key.typ == a.typ && q.key.class == dns.ClassINET {
			say("a server is asked")
			return
		}
	}
	switch {
	case r.msg == nil || r.msg.Rcode != dns.RcodeSuccess:
		if !r.closed && !j.w.mayBeUnread(r) && !(a.deadline > 0 || a.cancel >= 0) {
			say("it fails")
		}
		return
	case r.end-r.began > timeTolerance && j.w.way.front != "udp" && j.w.way.front != "tcp":
		say("it is late")
	}
	ask := *a
	ask.options = formatOptions(r.msg) // which servers repeat
	if wrong := findFormError(&ask, r.msg); wrong != "" {
		say(wrong)
	}
	var got []string
	for _, rr := range r.msg.Answer {
		if record, ok := rr.(*dns.A); ok && rr.Header().Ttl <= 30 {
			got = append(got, record.A.String())
		} else {
			say("it has another record")
		}
	}
	has := a.typ == dns.TypeA || a.typ == dns.TypeANY
	switch {
	case !has && len(got) > 0, has && len(got) != 1:
		say("it has not as many addresses")
	case has && got[0] != j.w.hostedAt(r.end) && got[0] != j.w.hostedAt(r.began-fileNoticed):
		say("it has not the address that the file has")
	}
}
