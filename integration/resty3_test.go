package integration

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"resty.dev/v3"

	"github.com/gohedge/hedge"
)

// A hedger is a resty.Hedger. It embeds hedge.Transport by another name, because Hedger has a method Transport.
type (
	hedger struct{ *hedged }
	hedged = hedge.Transport
)

func (h *hedger) SetTransport(rt http.RoundTripper) { h.hedged = hedge.New(rt) }
func (h *hedger) Transport() http.RoundTripper      { return h.WrappedRoundTripper() }

func TestResty3(t *testing.T) {
	s := serve(t, http.HandlerFunc(catalog))
	base := base(t)
	plain := resty.New().SetTransport(base)
	defer plain.Close()
	fetch := func(c *resty.Client) func(context.Context) (stock, error) {
		return func(ctx context.Context) (stock, error) {
			resp, err := c.R().SetContext(ctx).SetResult(stock{}).Get(s.URL)
			if err != nil {
				return stock{}, err
			}
			return *resp.Result().(*stock), nil
		}
	}

	t.Run("as transport", func(t *testing.T) {
		transport := hedge.New(base)
		client := resty.New().SetTransport(transport)
		defer client.Close()

		_, err := client.HTTPTransport()
		assert.Error(t, err, "SetTLSClientConfig, SetProxy and the like need it")
		got := same(t, s, transport, fetch(plain), fetch(client))
		once(t, s, func(ctx context.Context) error {
			_, err := client.R().SetContext(ctx).SetBody(got).Post(s.URL)
			return err
		})
	})
	t.Run("as hedger", func(t *testing.T) {
		client := resty.New().SetTransport(base).SetRetryCount(3)
		defer client.Close()

		hedging := new(hedger)
		client.SetHedging(hedging)

		same(t, s, hedging.hedged, fetch(plain), fetch(client))
		assert.Zero(t, client.RetryCount(), "SetHedging switches retries off")
	})
}
