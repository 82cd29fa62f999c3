package dnssec_test

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/signer"
)

// withoutDescriptors is an Exchanger that finds no descriptors for questions of some types while it is short of them.
type withoutDescriptors struct {
	dnssec.Exchanger
	types []uint16
	short atomic.Bool
}

func (w *withoutDescriptors) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	if ask := m.Question[0]; w.short.Load() && slices.Contains(w.types, ask.Qtype) {
		return nil, 0, &dnshedge.Error{Name: ask.Name, Type: ask.Qtype, Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}
	return w.Exchanger.ExchangeContext(ctx, m, address)
}

func TestValidatorReturnsLocalErrorOfKeys(t *testing.T) {
	for _, types := range [][]uint16{{dns.TypeDNSKEY}, {dns.TypeDS}, {dns.TypeDNSKEY, dns.TypeDS}} {
		for name, want := range map[string]string{"www.example.": "secure", "www.deep.other.": "secure", "www.plain.": "insecure", "alias.example.": "secure"} {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				w := &withoutDescriptors{Exchanger: u, types: types}
				w.short.Store(true)
				v.Exchanger = w
				c := &dnshedge.Client{Exchanger: v, Cache: new(dnshedge.Cache)}
				defer c.Close()
				for range 2 {
					m := new(dns.Msg).SetQuestion(name, dns.TypeA)
					_, _, err := c.Exchange(m, "")
					require.ErrorIs(t, err, syscall.EMFILE, "%s without %v", name, types)
				}
				w.short.Store(false)
				m := new(dns.Msg).SetQuestion(name, dns.TypeA)
				r, _, err := c.Exchange(m, "")
				require.NoError(t, err)
				assert.Equal(t, dns.RcodeSuccess, r.Rcode, "%s at once", name)
				assert.Equal(t, want, security(t, v, name+" A"))
			})
		}
	}
}

// The keys of a zone have been replaced, and the new ones cannot be asked for because of a local error.
func TestValidatorReturnsLocalErrorOfRefreshedKeys(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		w := &withoutDescriptors{Exchanger: u, types: []uint16{dns.TypeDNSKEY, dns.TypeDS}}
		v.Exchanger = w
		require.Equal(t, "secure", security(t, v, "www.example. A"))
		time.Sleep(10 * time.Second)
		z := u.world.zones["example."]
		z.key = signer.NewKey(z.name, signer.KSK, dns.ED25519, "2")
		z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.key.DNSKEY}
		u.world.sign()
		w.short.Store(true)
		_, err := ask(v, "www.example. A")
		require.ErrorIs(t, err, syscall.EMFILE)
		w.short.Store(false)
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
	})
}

func TestValidatorReportAnswersDespiteLocalError(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		w := &withoutDescriptors{Exchanger: u, types: []uint16{dns.TypeDNSKEY}}
		w.short.Store(true)
		v.Exchanger = w
		v.Trust.Report = true
		assert.Equal(t, "insecure", security(t, v, "www.example. A"))
	})
}
