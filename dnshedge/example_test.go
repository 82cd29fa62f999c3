package dnshedge_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
)

// An HTTP client resolves the names in its URLs by hedged, cached and encrypted DNS.
func ExampleClient_Resolver() {
	quad9, err := dnshedge.ParseUpstream("tls://9.9.9.9#dns.quad9.net")
	if err != nil {
		log.Fatal(err)
	}
	resolver := &dnshedge.Client{Upstreams: []dnshedge.Upstream{quad9}, Cache: new(dnshedge.Cache)}
	defer resolver.Close()
	dialer := &net.Dialer{Timeout: 30 * time.Second, Resolver: resolver.Resolver()}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialer.DialContext
	client := &http.Client{Transport: transport}
	_, _ = client.Get("https://example.com/")
}

// A Client takes the place of a *dns.Client.
func ExampleClient_ExchangeContext() {
	client := new(dnshedge.Client) // the system's servers
	defer client.Close()
	m := new(dns.Msg)
	m.SetQuestion("example.com.", dns.TypeMX)
	r, rtt, err := client.ExchangeContext(context.Background(), m, "")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r, rtt.Round(time.Millisecond))
}

// A Client is a dns.Handler, and so a forwarder takes five lines.
func ExampleClient_ServeDNS() {
	client := &dnshedge.Client{Cache: new(dnshedge.Cache)}
	defer client.Close()
	server := &dns.Server{Addr: "127.0.0.1:5300", Net: "udp", Handler: client}
	log.Fatal(server.ListenAndServe())
}

func ExampleParseUpstream() {
	for _, s := range []string{"192.0.2.1", "tls://192.0.2.1#dns.example", "https://dns.example", "ftp://192.0.2.1"} {
		up, err := dnshedge.ParseUpstream(s)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(up)
	}
	// Output:
	// udp://192.0.2.1:53
	// tls://192.0.2.1:853#dns.example
	// https://dns.example:443/dns-query
	// dnshedge: upstream "ftp://192.0.2.1": scheme "ftp"; want udp, tcp, tls or https
}
