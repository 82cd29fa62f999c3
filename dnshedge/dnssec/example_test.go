package dnssec_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"strings"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// A program resolves names itself and checks their signatures, but for a domain of its own that has none, and logs what is bogus.
func Example() {
	resolver := &recursor.Resolver{
		Trust: dnssec.Trust{Insecure: []string{"corp.example"}},
		Trace: &recursor.Trace{Answer: func(_ context.Context, a recursor.AnswerInfo) {
			if bogus := (*dnssec.Error)(nil); errors.As(a.Err, &bogus) {
				log.Printf("%s: %s, by %s", a.Name, bogus.Text, bogus.Server)
			}
		}},
	}
	defer resolver.Close()
	client := &dnshedge.Client{Exchanger: resolver, Cache: new(dnshedge.Cache)}
	defer client.Close()
	addrs, err := client.Resolver().LookupHost(context.Background(), "example.com")
	fmt.Println(addrs, err)
}

func ExampleTrust() {
	anchors, err := dnssec.ReadAnchors(strings.NewReader(
		". IN DS 38696 8 2 683D2D0ACB8C9B712A1948B27F741219298D0A450D612C483AF444A4C0FB2B16"))
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &recursor.Resolver{Trust: dnssec.Trust{
		Anchors:  anchors,
		Insecure: []string{"corp.example"}, // which the public zone denies
	}}
	defer r.Close()
	fmt.Println(r.Validate())
	// Output: <nil>
}

// A forwarder does not take the word of its upstreams for what is signed.
func ExampleValidator() {
	inner := &dnshedge.Client{Upstreams: []dnshedge.Upstream{
		{Net: "tls", Addr: "192.0.2.1:853", ServerName: "dns.example"},
		{Net: "tls", Addr: "192.0.2.2:853", ServerName: "dns.example"},
	}}
	defer inner.Close()
	validator := &dnssec.Validator{Exchanger: inner, Logger: slog.Default()}
	defer validator.Close()
	client := &dnshedge.Client{Exchanger: validator, Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder}
	defer client.Close()
	fmt.Println(client.Validate())
	// Output: <nil>
}
