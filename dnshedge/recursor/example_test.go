package recursor_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/dnstest"
)

// ExampleResolver makes all parts of a program resolve names by queries to authoritative servers. The Client has the
// cache.
func ExampleResolver() {
	resolver := new(recursor.Resolver)
	defer resolver.Close()
	client := &dnshedge.Client{Exchanger: resolver, Cache: new(dnshedge.Cache)}
	defer client.Close()
	net.DefaultResolver = client.Resolver()
}

// corp starts a server of the zone corp.example. and returns its address.
func corp() (netip.AddrPort, *dnstest.Server) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		m := dnstest.Answer(q, "A 192.0.2.1")
		m.Authoritative = true
		return dnstest.Reply{Msg: m}
	}}
	s.ServeUDP(pc)
	return pc.LocalAddr().(*net.UDPAddr).AddrPort(), s
}

// ExampleResolver_zones resolves names in a zone of the own network, which the Internet does not know.
func ExampleResolver_zones() {
	address, server := corp()
	defer server.Close()
	resolver := &recursor.Resolver{Zones: map[string][]netip.AddrPort{"corp.example": {address}}}
	defer resolver.Close()

	m := new(dns.Msg).SetQuestion("printer.corp.example.", dns.TypeA)
	r, _, err := resolver.ExchangeContext(context.Background(), m, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Answer[0].(*dns.A).A)
	fmt.Println("AD:", r.AuthenticatedData)
	// Output:
	// 192.0.2.1
	// AD: false
}

// ExampleResolver_Export keeps learned data over a restart. A file may take the place of the buffer.
func ExampleResolver_Export() {
	before := new(recursor.Resolver)
	defer before.Close()
	var saved bytes.Buffer
	if err := before.Export(&saved); err != nil {
		log.Fatal(err)
	}
	after := new(recursor.Resolver)
	defer after.Close()
	if err := after.Import(&saved); err != nil {
		log.Print(err) // it begins with nothing
	}
}

// ExampleTrace prints the servers that are queried for a name, and whether a query was a hedge.
func ExampleTrace() {
	address, server := corp()
	defer server.Close()
	resolver := &recursor.Resolver{
		Zones: map[string][]netip.AddrPort{"corp.example": {address}},
		Trace: &recursor.Trace{
			Attempt: func(_ context.Context, a recursor.AttemptInfo) {
				fmt.Printf("%s is asked of a server of %s, as a hedge: %t\n", a.Name, a.Zone, a.Hedge)
			},
			Answer: func(_ context.Context, a recursor.AnswerInfo) {
				fmt.Printf("%s took %d query: %s\n", a.Name, a.Queries, dns.RcodeToString[a.Rcode])
			},
		},
	}
	defer resolver.Close()
	m := new(dns.Msg).SetQuestion("printer.corp.example.", dns.TypeA)
	if _, _, err := resolver.ExchangeContext(context.Background(), m, ""); err != nil {
		log.Fatal(err)
	}
	// Output:
	// printer.corp.example. is asked of a server of corp.example., as a hedge: false
	// printer.corp.example. took 1 query: NOERROR
}
