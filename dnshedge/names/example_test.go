package names_test

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/names"
)

// An HTTP client follows the addresses of the hosts that it calls, and its hedges go to other
// addresses than the calls that are late.
func ExampleNames_Drain() {
	resolver := new(dnshedge.Client) // asks the servers of the system
	defer resolver.Close()
	n := &names.Names{Exchanger: resolver}
	defer n.Close()
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DialContext = n.DialContext
	client := &http.Client{Transport: n.Drain(hedge.New(base, hedge.WithReplicas(n)))}
	_, _ = client.Get("https://example.com/")
}

// Whoever keeps connections of another kind can watch a host.
func ExampleNames_Watch() {
	n := &names.Names{Exchanger: fixed("192.0.2.1")}
	defer n.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for addrs, err := range n.Watch(ctx, "db.example") {
		fmt.Println(addrs, err)
		break
	}
	// Output: [192.0.2.1] <nil>
}

// fixed answers A questions with an address.
type fixed string

func (ip fixed) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	r := new(dns.Msg)
	r.SetReply(m)
	if q := m.Question[0]; q.Qtype == dns.TypeA {
		rr, err := dns.NewRR(q.Name + " 60 A " + string(ip))
		if err != nil {
			return nil, 0, err
		}
		r.Answer = append(r.Answer, rr)
	}
	return r, 0, nil
}
