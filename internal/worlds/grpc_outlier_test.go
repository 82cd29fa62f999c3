//go:build !hedge_nogrpc

package worlds_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge/internal/grpctest"
)

func init() { grpctest.RegisterOutlierModel() }

// backendHosts are the servers of a scenario with outlier detection. They behave alike.
var backendHosts = []string{"server", "server2", "server3"}

// newOutlierDetection decides whether the caller's connection has several servers, which hedge_elsewhere and outlier detection choose. It
// excludes parts that need one server.
func newOutlierDetection(d *generator, w *grpcScenario) {
	if y := &w.way; !y.second && len(y.conns) == 0 && !y.spelt && w.places == 0 && !w.nonce {
		y.outlier = drawFlag(d, "way.outlier", .2)
	}
}

// dialBackends opens the callers' connection with outlier detection. The argument more has further fields of its service
// config.
func (p *grpcPlay) dialBackends(chain []grpc.DialOption, more string) *grpc.ClientConn {
	if more != "" {
		more = "," + more
	}
	found := manual.NewBuilderWithScheme("passthrough")
	var addrs []resolver.Address
	for _, host := range backendHosts {
		addrs = append(addrs, resolver.Address{Addr: host + ":80"})
	}
	found.InitialState(resolver.State{Addresses: addrs})
	cc, err := grpc.NewClient("passthrough:///server:80", append(chain[:len(chain):len(chain)], grpc.WithResolvers(found),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithDefaultServiceConfig(grpctest.OutlierDetectionConfig("round_robin", more)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return p.network.Host("client").DialContext(ctx, "tcp", addr)
		}))...)
	if err != nil {
		panic(err)
	}
	return cc
}

// checkOutlierCounts compares the failures that outlier detection has counted with those that the servers have sent. A loser
// is no failure, nor is a hedge that ends with its call. Each failure that arrives before its call ends is counted.
func (j *grpcChecker) checkOutlierCounts() {
	type attempt struct{ call, number int }
	failed := make(map[attempt]bool) // as counted
	for _, count := range j.hedged.counts.All() {
		key := attempt{firstNumber(count.Metadata, callKey), firstNumber(count.Metadata, attemptKey)}
		if count.Code == codes.OK || key.call == 0 {
			continue
		}
		failed[key] = true
		c, r, sent := j.w.calls[key.call-1], j.hedged.results[key.call-1], false
		for _, a := range j.hedged.arrivals[key.call] {
			sent = sent || a.attempt == key.number && a.failed > 0
		}
		cut := count.Code == codes.Canceled || count.Code == codes.DeadlineExceeded
		act := c.acts[min(key.number, len(c.acts)-1)]
		switch answers := act.header || act.stall > 0; { // its header may have come
		case sent || !cut || r.panicked != "" || r.isStuck() || key.number == r.act:
		case r.act >= 0 && r.succeeded():
			j.add("5 loser counted", "outlier detection counts attempt %d of call %d: %v, %v", key.number, key.call, count.Code, r)
		case key.number > 0 && !answers && count.Code == codes.Canceled: // a server obeys deadlines as well
			j.add("5 hedge counted", "outlier detection counts attempt %d of call %d, which the end of its call has cut off: %v, %v", key.number, key.call, count.Code, r)
		}
	}
	for call, all := range j.hedged.arrivals {
		for _, a := range all {
			if call == 0 || j.w.calls[call-1].elsewhere || a.failed == 0 || failed[attempt{call, a.attempt}] {
				continue
			}
			if r := j.hedged.results[call-1]; r.panicked == "" && a.failed+ms < r.began+r.first {
				j.add("5 failure not counted", "outlier detection does not count attempt %d of call %d, which failed at %v: %v", a.attempt, call, a.failed, r)
			}
		}
	}
}

// timeoutConfig returns the part of a service config that sets the timeout of all methods, or "" if there is none.
func (y *grpcNetwork) timeoutConfig() string {
	if y.timeout == 0 {
		return ""
	}
	return fmt.Sprintf(`"methodConfig":[{"name":[{}],"timeout":"%gs"}]`, y.timeout.Seconds())
}
