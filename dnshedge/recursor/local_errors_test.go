package recursor_test

import (
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

// besides is a zone whose server has its name in another zone.
const besides = `
. served 198.41.0.4
hoster. delegated 192.0.2.2
  ns A 192.0.3.1
  ns2 A 192.0.3.1
tld. delegated 192.0.2.1
  example NS ns.hoster.
  example NS ns2.hoster.
example.tld. served 192.0.3.1
  www A 192.0.2.80
`

// TestResolverReturnsLocalErrorAndCachesNone has no free file descriptors for a short time. Questions fail during
// that time, and not afterwards.
func TestResolverReturnsLocalErrorAndCachesNone(t *testing.T) {
	const lasts = 100 * ms
	for name, text := range map[string]string{"names of servers": besides, "zones": pairs, "keys": pairs} {
		for begins := time.Duration(0); begins < 150*ms; begins += 5 * ms {
			bubble(t, text, func(t *testing.T, w *testNetwork) {
				r := w.resolver()
				if name == "keys" {
					w.sign()
					r = newValidatingResolver(w)
				}
				c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
				defer c.Close()
				start := time.Now()
				w.withLock(func() {
					w.refuse = func(string, netip.Addr) error {
						if passed := time.Since(start); passed > begins && passed < begins+lasts {
							return os.NewSyscallError("socket", syscall.EMFILE)
						}
						return nil
					}
				})
				for {
					m := new(dns.Msg).SetQuestion("www.example.tld.", dns.TypeA)
					m.SetEdns0(1232, false)
					resp, _, err := c.Exchange(m, "")
					if err == nil {
						require.Equal(t, dns.RcodeSuccess, resp.Rcode, "%s after %v: %v", name, begins, resp)
						break
					}
					require.ErrorIs(t, err, syscall.EMFILE, "%s after %v", name, begins)
					time.Sleep(20 * ms)
				}
				assert.Less(t, time.Since(start), begins+lasts+400*ms, "%s after %v", name, begins)
			})
		}
	}
}
