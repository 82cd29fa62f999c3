package forward_test

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
)

// A forwarder for the machines of an office, which filters private addresses except those of the office's own domain.
func ExampleForwarder() {
	upstream, err := dnshedge.ParseUpstream("tls://192.0.2.1#dns.example")
	if err != nil {
		log.Fatal(err)
	}
	office, err := forward.ParseNetwork("198.51.100.0/24")
	if err != nil {
		log.Fatal(err)
	}
	client := &dnshedge.Client{
		Upstreams:    []dnshedge.Upstream{upstream},
		Cache:        new(dnshedge.Cache),
		SpecialUse:   dnshedge.SpecialUseForwarder,
		RebindFilter: &dnshedge.RebindFilter{Allow: []string{"office.example"}},
	}
	defer client.Close()
	limits := forward.DefaultLimits()
	limits.QuestionsPerSecond = 100
	f, err := forward.New(forward.Config{
		Client: client, Listen: []string{":53"}, Allow: append(forward.LocalNetworks(), office), Limits: &limits, StateFile: "/var/lib/dns/cache",
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := f.Serve(ctx); err != nil {
		log.Print(err)
	}
}
